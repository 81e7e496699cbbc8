// PrefixTree when memory runs out: every allocation of an operation fails once.
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "allocations.h"
#include "check.h"
#include "pykv/prefix_tree.h"

using namespace pykv;

namespace {

constexpr NamespaceId ns{0};
constexpr Token kLength = 100;

// One branch of ready tokens, and a holder at its end.
struct World {
  World() : map(8), tree(map, lru), tokens(kLength) {
    std::iota(tokens.begin(), tokens.end(), 0);
    holder = tree.attach(ns, {}, 0, 1.0);
    tree.grow(holder, ns, tokens);
    std::vector<Run> runs;
    // Odd cells, so that every token has a span of its own.
    for (Token i = 0; i < kLength; ++i) {
      const CellIndex cell = 2 * static_cast<CellIndex>(i) + 1;
      map.take(SeqId{1}, {cell, 1});
      runs.push_back({i, cell, 1, 0});
    }
    tree.publish(holder, 0, runs, 1.0);
  }

  CellMap map;
  LruPolicy lru;
  PrefixTree tree;
  std::vector<Token> tokens;
  PrefixTree::HolderId holder;
};

// Runs `change` in new worlds with the first, second, … allocation failing, until none is
// left to fail; `after` looks at every world. Returns how many failed.
template <class Change, class After>
int fail_each(Change change, After after) {
  std::optional<World> world;
  return allocations::fail_each([&] { world.emplace(); }, [&] { change(*world); },
                                [&](bool) {
                                  world->tree.check_integrity();
                                  CHECK(world->tree.match(ns, world->tokens).tokens == kLength);
                                  after(*world);
                                  world->tree.check_integrity();
                                });
}

}  // namespace

TEST(a_place_that_cannot_be_given_leaves_no_split) {
  const int failed = fail_each([](World& w) { w.tree.attach(ns, w.tokens, 40, 2.0); },
                               [](World& w) {
                                 const auto& counts = w.tree.counts();
                                 CHECK(counts.nodes == counts.holders);
                               });
  CHECK(failed >= 3);
}

TEST(a_branch_that_cannot_be_announced_leaves_no_split) {
  const std::vector<Token> other{900, 901};
  const int failed = fail_each(
      [&](World& w) {
        const PrefixTree::HolderId second = w.tree.attach(ns, {}, 0, 2.0);
        std::vector<Token> branch(w.tokens.begin(), w.tokens.begin() + 40);
        branch.insert(branch.end(), other.begin(), other.end());
        w.tree.grow(second, ns, branch);
      },
      [](World& w) { CHECK(w.tree.counts().nodes == 1 || w.tree.counts().nodes == 3); });
  CHECK(failed >= 4);
}

// Letting go cannot fail. Nodes that stay apart for it merge when they are next let go.
TEST(a_merge_without_memory_is_made_up_for) {
  bool was_apart = false;
  fail_each(
      [&](World& w) {
        const std::int64_t failing = std::exchange(allocations::left, -1);
        const PrefixTree::HolderId a = w.tree.attach(ns, w.tokens, 30, 2.0);
        const PrefixTree::HolderId b = w.tree.attach(ns, w.tokens, 60, 2.0);
        allocations::left = failing;
        w.tree.detach(a, 3.0);
        w.tree.detach(b, 3.0);
      },
      [&](World& w) {
        CHECK(w.tree.counts().holders == 1);
        was_apart = was_apart || w.tree.counts().nodes > 1;
        for (const std::uint32_t depth : {30U, 60U, 45U}) {
          const PrefixTree::HolderId visitor = w.tree.attach(ns, w.tokens, depth, 4.0);
          w.tree.detach(visitor, 5.0);
        }
        CHECK(w.tree.counts().nodes == 1);
      });
  CHECK(was_apart);
}
