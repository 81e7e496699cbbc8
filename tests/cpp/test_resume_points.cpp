#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cache/resume_points.h"
#include "check.h"
#include "core/cell_moves.h"
#include "find_cells.h"
#include "pykv/errors.h"

using namespace pykv;

namespace {

constexpr NamespaceId ns{0};
constexpr std::uint32_t kWindow = 8;
constexpr std::uint64_t kCellBytes = 10;
constexpr std::uint64_t kPointBytes = (kWindow - 1) * kCellBytes;

std::vector<Token> range(Token begin, Token end) {
  std::vector<Token> tokens(static_cast<std::size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

// A tree whose sequence 1 has `tokens` tokens in the tree's pool and in one with a window.
struct World {
  explicit World(std::uint64_t budget, std::uint32_t tokens = 100)
      : base(16), window(16), tree(base, lru), runs(window) {
    points = std::make_unique<ResumePoints>(
        tree, ResumePoints::Config{{{&window, {WindowKind::standard, kWindow}, kCellBytes}},
                                   budget,
                                   kStateBytes,
                                   [this](StateSlot slot) { released.push_back(slot); }});
    holder = tree.attach(ns, {}, 0, 0.0);
    prompt = range(0, static_cast<Token>(tokens));
    tree.grow(holder, ns, prompt);
    publish(tokens);
  }

  void publish(std::uint32_t tokens) {
    std::vector<Run> taken;
    for (const CellSpan span : take(base, tokens)) {
      taken.push_back({taken.empty() ? 0 : taken.back().end(), span.begin, span.length, 0});
    }
    tree.publish(holder, 0, taken, 0.0);
    for (const Run& run : taken) base.drop_holder({run.cell, run.length});
    for (const CellSpan span : take(window, tokens))
      runs.append({runs.end(), span.begin, span.length, 0}, RunList::Hold::adopt);
  }

  static std::vector<CellSpan> take(CellMap& map, std::uint32_t count) {
    const CellRequest request{SeqId{1}, count, std::nullopt};
    const auto found = find_cells(map, {&request, 1});
    if (!found) throw OutOfCells("the test's pool is too small");
    for (const CellSpan span : found->front()) map.take(SeqId{1}, span);
    return found->front();
  }

  ResumePoints::Memory memory(std::uint32_t depth) const {
    ResumePoints::Memory memory;
    std::vector<Run>& out = memory.windows.emplace_back();
    const Pos end = static_cast<Pos>(depth);
    runs.for_each({first_visible(end, {WindowKind::standard, kWindow}), end},
                  [&](const Run& run) { out.push_back(run); });
    return memory;
  }

  bool add(std::uint32_t depth) { return points->add(holder, depth, memory(depth)); }
  std::uint32_t found(std::uint32_t limit) const {
    const auto point = points->find(ns, prompt, limit);
    return point ? points->depth(*point) : 0;
  }
  void check() const {
    base.check_integrity();
    window.check_integrity();
    tree.check_integrity();
    points->check_integrity();
  }

  static constexpr std::uint64_t kStateBytes = 25;
  CellMap base, window;
  LruPolicy lru;
  PrefixTree tree;
  RunList runs;
  std::vector<Token> prompt;
  PrefixTree::HolderId holder;
  std::vector<StateSlot> released;
  std::unique_ptr<ResumePoints> points;
};

}  // namespace

TEST(the_deepest_point_within_the_limit_is_found_along_tokens_and_path) {
  World world(10 * kPointBytes);
  CHECK(world.add(20) && world.add(50) && world.add(90));
  CHECK(world.found(100) == 90 && world.found(89) == 50 && world.found(50) == 50 && world.found(19) == 0);
  std::vector<Token> other = range(0, 60);
  other[55] = 999;
  CHECK(world.points->depth(*world.points->find(ns, other, 100)) == 50);
  CHECK(!world.points->find(NamespaceId{1}, world.prompt, 100));
  CHECK(world.points->depth(*world.points->find(world.holder, 60)) == 50);
  CHECK(!world.points->find(world.holder, 10));
  world.check();
}

TEST(a_point_at_the_beginning_has_less_than_a_window) {
  World world(10 * kPointBytes);
  CHECK(world.add(3));
  CHECK(world.points->counts().bytes == 3 * kCellBytes);
  world.check();
}

TEST(points_share_cells_and_each_counts_once) {
  World world(10 * kPointBytes);
  CHECK(world.add(50) && world.add(52));
  CHECK(world.points->counts().bytes == kPointBytes + 2 * kCellBytes);
  CHECK(world.window.counts().idle == 0);  // the sequence has all of them
  world.runs = RunList(world.window);
  CHECK(world.window.counts().active == 0 && world.window.counts().idle == kWindow - 1 + 2);
  CHECK(world.points->drop_oldest());
  CHECK(world.window.counts().idle == kWindow - 1);
  world.check();
}

TEST(the_same_place_is_one_point) {
  World world(10 * kPointBytes);
  CHECK(world.add(50) && !world.add(50));
  CHECK(world.points->counts().points == 1);
  world.check();
}

TEST(the_budget_drives_out_the_least_recently_used) {
  World world(3 * kPointBytes);
  CHECK(world.add(20) && world.add(40) && world.add(60));
  world.points->use(*world.points->find(ns, world.prompt, 20));
  CHECK(world.add(80));
  CHECK(world.found(59) == 20 && world.found(79) == 60 && world.found(100) == 80);
  CHECK(world.points->counts().bytes == 3 * kPointBytes && world.points->counts().dropped == 1);
  world.check();
}

TEST(what_alone_exceeds_the_budget_is_no_point) {
  World world(kPointBytes - 1);
  CHECK(!world.add(50) && world.add(3));
  CHECK(world.points->counts().points == 1);
  World none(0);
  CHECK(!none.add(50) && none.found(100) == 0);
  none.check();
}

TEST(points_follow_splits_and_merges_of_nodes) {
  World world(10 * kPointBytes);
  for (const std::uint32_t depth : {20U, 50U, 51U, 90U}) CHECK(world.add(depth));
  const auto middle = world.tree.attach(ns, world.prompt, 50, 1.0);  // splits the node
  CHECK(world.tree.counts().nodes == 2);
  CHECK(world.found(50) == 50 && world.found(51) == 51 && world.found(49) == 20);
  world.check();
  const auto low = world.tree.attach(ns, world.prompt, 10, 1.0);
  CHECK(world.found(50) == 50 && world.found(19) == 0);
  world.check();
  world.tree.detach(middle, 2.0);
  world.tree.detach(low, 2.0);
  CHECK(world.tree.counts().nodes == 1);
  CHECK(world.found(50) == 50 && world.found(100) == 90);
  world.check();
}

TEST(points_go_with_their_tokens) {
  World world(10 * kPointBytes);
  CHECK(world.add(20) && world.add(50) && world.add(90));
  world.tree.detach(world.holder, 1.0);
  CHECK(world.tree.evict(11, 1.0) == 11);  // tokens 89 to 99
  CHECK(world.found(100) == 50 && world.points->counts().points == 2);
  world.check();
  CHECK(world.tree.evict(89, 1.0) == 89);
  CHECK(world.points->counts().points == 0 && world.points->counts().bytes == 0);
  world.check();
}

TEST(runs_that_do_not_cover_the_window_are_refused) {
  World world(10 * kPointBytes);
  ResumePoints::Memory memory = world.memory(50);
  CHECK_THROWS(IntegrityError, world.points->add(world.holder, 51, memory));
  memory.windows.clear();
  CHECK_THROWS(IntegrityError, world.points->add(world.holder, 50, memory));
  CHECK_THROWS(InvalidArgument, world.points->add(world.holder, 101, {{{{94, 0, 7, 0}}}, {}}));
  CHECK(world.points->counts().points == 0);
  world.check();
}

TEST(snapshots_are_released_with_their_points) {
  World world(3 * kPointBytes);
  ResumePoints::Memory memory = world.memory(50);
  memory.state = StateSlot{7};
  CHECK(world.points->add(world.holder, 50, memory));
  CHECK(world.points->counts().bytes == kPointBytes + World::kStateBytes);
  CHECK(world.points->memory(*world.points->find(ns, world.prompt, 50)).state == StateSlot{7});
  world.check();
  CHECK(world.add(70) && world.add(90) && world.released == std::vector<StateSlot>{StateSlot{7}});
  world.check();
}

TEST(cells_of_points_move) {
  World world(10 * kPointBytes);
  CHECK(world.add(50) && world.add(52) && world.add(90));
  world.runs = RunList(world.window);
  CellMoves moves(world.window.block_count());
  moves.begin_unit();
  moves.add({45, 3}, 600);
  ResumePoints::Relocation relocation(*world.points, 0, moves);
  world.window.relocate(moves);
  relocation.apply();
  const auto point = world.points->find(ns, world.prompt, 50);
  CHECK(world.points->memory(*point).windows[0] ==
        (std::vector<Run>{{43, 43, 2, 0}, {45, 600, 3, 0}, {48, 48, 2, 0}}));
  world.check();
}

TEST(random_operations_keep_every_invariant) {
  std::mt19937 random(5);
  World world(6 * kPointBytes, 300);
  std::vector<PrefixTree::HolderId> holders;
  for (int step = 0; step < 2000; ++step) {
    const std::uint32_t at = 1 + random() % 300;
    switch (random() % 5) {
      case 0:
      case 1:
        if (at <= world.prompt.size()) world.add(at);
        break;
      case 2:
        if (holders.size() < 8) holders.push_back(world.tree.attach(ns, world.prompt, at, step));
        break;
      case 3:
        if (!holders.empty()) {
          world.tree.detach(holders.back(), step);
          holders.pop_back();
        }
        break;
      default:
        if (const auto point = world.points->find(ns, world.prompt, at)) {
          CHECK(world.points->depth(*point) <= at);
          world.points->use(*point);
        }
    }
    if (step % 20 == 0) world.check();
  }
  world.check();
}
