// The prefix tree against a model of single tokens, changed alike at random.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "prefix_tree_world.h"

using namespace pykv;
using namespace prefix_tree_world;

namespace {

// The tree token by token.
struct Model {
  struct Node {
    std::map<std::pair<std::uint32_t, Token>, std::unique_ptr<Node>> children;
    Node* parent = nullptr;
    std::pair<std::uint32_t, Token> edge;
    bool ready = false;
    CellIndex cell = 0;
    int holders = 0;

    bool is_held() const {
      return holders > 0 || std::any_of(children.begin(), children.end(),
                                        [](const auto& child) { return child.second->is_held(); });
    }
  };

  Node root;
  Model() { root.ready = true; }

  Node* find(Node* from, NamespaceId space, Token token) {
    const auto at = from->children.find({space.value, token});
    return at == from->children.end() ? nullptr : at->second.get();
  }

  Node* grow(Node* from, NamespaceId space, const Tokens& tokens) {
    for (const Token token : tokens) {
      auto& child = from->children[{space.value, token}];
      if (!child) {
        child = std::make_unique<Node>();
        child->parent = from;
        child->edge = {space.value, token};
      }
      from = child.get();
    }
    return from;
  }

  // Removes announced tokens without a holder at or below them.
  static void prune(Node* node) {
    while (node->parent != nullptr && !node->ready && !node->is_held()) {
      Node* parent = node->parent;
      parent->children.erase(node->edge);
      node = parent;
    }
  }

  // Where a holder stands, the branch forks or ends, or the namespace changes; nowhere else.
  static bool ends_node(const Node& node) {
    return node.holders > 0 || node.children.size() != 1 ||
           node.children.begin()->first.first != node.edge.first;
  }

  template <class Visit>
  static void each(Node& node, Visit visit) {
    for (auto& [edge, child] : node.children) {
      each(*child, visit);
      visit(*child);
    }
  }
};

std::uint32_t depth_of(const Model::Node* node) {
  std::uint32_t depth = 0;
  for (; node->parent != nullptr; node = node->parent) ++depth;
  return depth;
}

// A tree and its model, changed alike.
struct Twins : World {
  struct Session {
    HolderId holder;
    Model::Node* place;
    NamespaceId space;
  };

  Twins(EdgeHash hash, unsigned seed) : World(6, hash), random(seed) {}

  Tokens random_tokens(std::uint32_t most) {
    Tokens tokens(random() % (most + 1));
    for (Token& token : tokens) token = random() % 8 == 0 ? 1 + static_cast<Token>(random() % 2) : 0;
    return tokens;
  }

  Session& any() { return sessions[random() % sessions.size()]; }

  void move(Session& session, Model::Node* to) {
    Model::Node* from = session.place;
    session.place = to;
    ++to->holders;
    --from->holders;
    Model::prune(from);
  }

  void attach() {
    const NamespaceId space{static_cast<std::uint32_t>(random() % 2)};
    const Tokens tokens = random_tokens(30);
    Model::Node* node = &model.root;
    std::uint32_t depth = 0;
    const std::uint32_t limit = random() % 31;
    while (depth < std::min<std::size_t>(limit, tokens.size())) {
      Model::Node* next = model.find(node, space, tokens[depth]);
      if (next == nullptr) break;
      node = next;
      ++depth;
    }
    ++node->holders;
    sessions.push_back({tree.attach(space, tokens, depth, ++now), node, space});
  }

  void grow() {
    Session& session = any();
    if (random() % 8 == 0) session.space = NamespaceId{1 - session.space.value};  // e.g. a private rest
    const Tokens tokens = random_tokens(random() % 3 == 0 ? 12 : 2);
    tree.grow(session.holder, session.space, tokens);
    Model::Node* to = model.grow(session.place, session.space, tokens);
    ++to->holders;
    --std::exchange(session.place, to)->holders;
  }

  // The tokens on the path of `session`, first one first.
  std::vector<Model::Node*> path_of(const Session& session) {
    std::vector<Model::Node*> path;
    for (Model::Node* node = session.place; node->parent != nullptr; node = node->parent)
      path.push_back(node);
    std::reverse(path.begin(), path.end());
    return path;
  }

  void publish() {
    const Session& session = any();
    const std::vector<Model::Node*> path = path_of(session);
    std::uint32_t ready = 0;
    while (ready < path.size() && path[ready]->ready) ++ready;
    const auto begin = static_cast<std::uint32_t>(random() % (ready + 1));
    const auto count = static_cast<std::uint32_t>(random() % (path.size() - begin + 1));
    if (count > map.counts().free) return;
    const std::vector<Run> runs = take(begin, count);
    const std::uint32_t published = tree.publish(session.holder, begin, runs, ++now);
    CHECK(published == (begin + count > ready ? begin + count - ready : 0));
    for (const Run& run : runs)
      for (std::uint32_t i = 0; i < run.length; ++i) {
        Model::Node& node = *path[static_cast<std::uint32_t>(run.first) + i];
        if (!std::exchange(node.ready, true)) node.cell = run.cell + i;
      }
    for (const Run& run : runs) kept.push_back({run.cell, run.length});
  }

  void rewind() {
    Session& session = any();
    const std::uint32_t depth = random() % (depth_of(session.place) + 1);
    tree.rewind(session.holder, depth, ++now);
    Model::Node* to = session.place;
    while (depth_of(to) > depth) to = to->parent;
    move(session, to);
  }

  void retract() {
    Session& session = any();
    tree.retract(session.holder, ++now);
    Model::Node* to = session.place;
    while (!to->ready) to = to->parent;
    move(session, to);
  }

  void detach() {
    Session& session = any();
    tree.detach(session.holder, ++now);
    --session.place->holders;
    Model::prune(session.place);
    std::swap(session, sessions.back());
    sessions.pop_back();
  }

  void fork() {
    Session copy = any();
    copy.holder = tree.copy(copy.holder);
    ++copy.place->holders;
    sessions.push_back(copy);
  }

  void forget_cells() {
    if (kept.empty()) return;
    std::swap(kept[random() % kept.size()], kept.back());
    map.drop_holder(kept.back());
    kept.pop_back();
  }

  // Whatever went must have been a tail that nobody held, and cells that nobody kept.
  void evict() {
    const std::uint32_t limit = random() % 20, free_before = map.counts().free;
    bool could_free = false;
    Model::each(model.root, [&](Model::Node& node) {
      could_free = could_free || (node.ready && !node.is_held() && map.holders(node.cell) == 0);
    });
    const std::uint32_t freed = tree.evict(limit, ++now);
    CHECK(freed <= limit && freed == map.counts().free - free_before);
    CHECK((freed > 0) == (could_free && limit > 0));
    std::vector<Model::Node*> gone;  // deepest first
    Model::each(model.root, [&](Model::Node& node) {
      if (node.ready && !map.in_tree(node.cell)) gone.push_back(&node);
    });
    for (Model::Node* node : gone) {
      CHECK(node->children.empty() && node->holders == 0);
      node->parent->children.erase(node->edge);
    }
  }

  void compare() {
    check();
    std::uint64_t tokens = 0, ready = 0;
    std::uint32_t nodes = 0;
    Model::each(model.root, [&](Model::Node& node) {
      ++tokens;
      nodes += Model::ends_node(node) ? 1 : 0;
      ready += node.ready ? 1 : 0;
    });
    CHECK(tree.counts().tokens == tokens && tree.counts().ready_tokens == ready);
    CHECK(tree.counts().nodes == nodes);
    for (const PrefixTree::NodeView& view : tree.nodes()) {
      if (view.children > 0 || view.holders > 0) continue;
      const EvictionPolicy::Candidate& facts = lru.known[view.id];
      CHECK(facts.cells == view.length && facts.depth == view.depth && facts.last_used == view.last_used);
    }
    CHECK(tree.counts().holders == sessions.size());
    for (const Session& session : sessions) CHECK(tree.depth(session.holder) == depth_of(session.place));
    const NamespaceId space{static_cast<std::uint32_t>(random() % 2)};
    const Tokens query = random_tokens(40);
    PrefixMatch expected;
    std::vector<CellIndex> cells;
    Model::Node* node = &model.root;
    for (const Token token : query) {
      node = model.find(node, space, token);
      if (node == nullptr) break;
      ++(node->ready ? expected.tokens : expected.pending);
      if (node->ready) cells.push_back(node->cell);
    }
    const PrefixMatch match = tree.match(space, query);
    CHECK(match.tokens == expected.tokens && match.pending == expected.pending);
    CHECK(tree.match_length(space, query) == expected.tokens);
    std::vector<CellIndex> matched;
    for (const Run& run : match.runs) {
      CHECK(run.first == static_cast<Pos>(matched.size()) && run.rotation == 0);
      for (std::uint32_t i = 0; i < run.length; ++i) matched.push_back(run.cell + i);
    }
    CHECK(matched == cells);
  }

  void step() {
    const auto dice = random() % 32;
    if (dice < 6 || sessions.empty()) return attach();
    if (dice < 13) return grow();
    if (dice < 19) return publish();
    if (dice < 21) return rewind();
    if (dice < 23) return retract();
    if (dice < 26 || sessions.size() > 12) return detach();
    if (dice < 27) return fork();
    if (dice < 30) return forget_cells();
    evict();
  }

  Model model;
  std::vector<Session> sessions;
  std::vector<CellSpan> kept;  // cells that a sequence holds too
  std::mt19937 random;
};

void compare_at_random(EdgeHash hash, unsigned seed, int steps) {
  Twins twins(hash, seed);
  for (int i = 0; i < steps; ++i) {
    twins.step();
    twins.compare();
  }
}

}  // namespace

TEST(random_operations_equal_a_model) {
  for (unsigned seed = 1; seed <= 5; ++seed) compare_at_random(default_edge_hash, seed, 3000);
}

// C7: a hash is never proof.
TEST(random_operations_equal_a_model_with_a_constant_hash) {
  for (unsigned seed = 1; seed <= 3; ++seed) compare_at_random(constant_hash, seed, 3000);
}
