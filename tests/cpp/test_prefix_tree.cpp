#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "prefix_tree_world.h"

using namespace pykv;
using namespace prefix_tree_world;

TEST(an_empty_tree_matches_nothing) {
  World world(1);
  CHECK(world.tree.match(ns, range(0, 5)).tokens == 0);
  CHECK(world.tree.match(ns, {}).runs.empty());
  const HolderId holder = world.tree.attach(ns, {}, 0, 1.0);
  CHECK(world.tree.depth(holder) == 0);
  world.tree.retract(holder, 1.0);
  world.tree.rewind(holder, 0, 1.0);
  CHECK(world.tree.publish(holder, 0, {}, 1.0) == 0);
  world.tree.detach(holder, 1.0);
  CHECK(world.tree.evict(10, 1.0) == 0 && world.tree.nodes().empty());
  world.check();
}

TEST(match_is_per_token_and_names_the_cells) {
  World world(8);
  world.compute(range(0, 100));
  const PrefixMatch match = world.tree.match(ns, joined(range(0, 73), {7, 8, 9}));
  CHECK(match.tokens == 73 && match.pending == 0);
  CHECK(match.runs == (std::vector<Run>{{0, 0, 73, 0}}));
  const HolderId branch = world.compute(joined(range(0, 73), {7, 8, 9}));
  CHECK(world.tree.counts().nodes == 3 && world.tree.counts().tokens == 103);
  CHECK(world.tree.match(ns, joined(range(0, 73), {7, 8})).runs ==
        (std::vector<Run>{{0, 0, 73, 0}, {73, 100, 2, 0}}));
  CHECK(world.tree.depth(branch) == 76);
  world.check();
}

TEST(namespaces_share_nothing) {
  World world(8);
  world.compute(range(0, 50));
  CHECK(world.tree.match(other_ns, range(0, 50)).tokens == 0);
  world.compute(range(0, 50), other_ns);
  CHECK(world.tree.counts().tokens == 100);
  CHECK(world.tree.match(other_ns, range(0, 50)).runs.front().cell !=
        world.tree.match(ns, range(0, 50)).runs.front().cell);
  world.check();
}

TEST(announced_tokens_are_pending_until_published) {
  World world(8);
  const Tokens prompt = range(0, 90);
  const HolderId leader = world.tree.attach(ns, {}, 0, 1.0);
  world.tree.grow(leader, ns, prompt);
  CHECK(world.tree.match(ns, prompt).tokens == 0 && world.tree.match(ns, prompt).pending == 90);
  CHECK(world.publish(leader, 0, 30) == 30);
  const PrefixMatch match = world.tree.match(ns, joined(range(0, 60), {1}));
  CHECK(match.tokens == 30 && match.pending == 30);
  // A follower attaches to what is ready, and the leader goes on.
  const HolderId follower = world.tree.attach(ns, prompt, 30, 1.0);
  CHECK(world.publish(leader, 30, 90) == 60);
  world.tree.grow(follower, ns, std::span(prompt).subspan(30));
  CHECK(world.tree.depth(follower) == 90 && world.tree.counts().tokens == 90);
  CHECK(world.publish(follower, 30, 90) == 0);  // ready already: its cells stay its own
  CHECK(world.map.counts().idle == 90);
  world.check();
}

TEST(path_runs_name_the_cells_of_a_part_of_the_path) {
  World w(8);
  w.compute(range(0, 100));
  const HolderId holder = w.compute(joined(range(0, 70), range(500, 600)));  // splits at 70
  const Tokens tokens = joined(range(0, 70), range(500, 600));
  const auto cells = [](const std::vector<Run>& runs) {
    std::vector<CellIndex> out;
    for (const Run& run : runs)
      for (std::uint32_t i = 0; i < run.length; ++i) out.push_back(run.cell + i);
    return out;
  };
  const std::vector<CellIndex> all = cells(w.tree.match(ns, tokens).runs);
  CHECK(cells(w.tree.path_runs(holder, 0, 170)) == all);
  const std::vector<Run> part = w.tree.path_runs(holder, 60, 80);
  CHECK(part.front().first == 60 && part.back().end() == 80);
  CHECK(cells(part) == std::vector<CellIndex>(all.begin() + 60, all.begin() + 80));
  CHECK(w.tree.path_runs(holder, 7, 7).empty());
  w.tree.grow(holder, ns, range(0, 5));
  CHECK_THROWS(InvalidArgument, w.tree.path_runs(holder, 0, 171));
  CHECK_THROWS(InvalidArgument, w.tree.path_runs(holder, 9, 8));
}

TEST(retract_takes_back_what_nobody_will_compute) {
  World world(8);
  const HolderId a = world.tree.attach(ns, {}, 0, 1.0);
  world.tree.grow(a, ns, range(0, 80));
  world.publish(a, 0, 20);
  const HolderId b = world.tree.attach(ns, range(0, 80), 50, 1.0);  // waits for 50 tokens
  world.tree.retract(a, 2.0);
  CHECK(world.tree.depth(a) == 20 && world.tree.depth(b) == 50);
  CHECK(world.tree.match(ns, range(0, 80)).pending == 30);
  world.check();
  world.tree.detach(b, 3.0);
  CHECK(world.tree.match(ns, range(0, 80)).pending == 0 && world.tree.counts().tokens == 20);
  world.tree.rewind(a, 0, 3.0);
  const HolderId c = world.tree.attach(ns, {}, 0, 3.0);
  world.tree.grow(c, ns, range(200, 210));
  world.tree.detach(c, 4.0);
  CHECK(world.tree.counts().nodes == 1 && world.tree.counts().tokens == 20);
  world.check();
}

TEST(a_holder_protects_up_to_its_depth_only) {
  World world(8);
  const HolderId holder = world.compute(range(0, 100));
  CHECK(world.tree.evict(1000, 0) == 0);
  world.tree.rewind(holder, 40, 5.0);
  CHECK(world.tree.evict(25, 0) == 25);  // the tail first
  CHECK(world.tree.match(ns, range(0, 100)).tokens == 75);
  CHECK(world.tree.evict(1000, 0) == 35);
  CHECK(world.tree.match(ns, range(0, 100)).tokens == 40);
  CHECK(world.tree.evict(1000, 0) == 0);
  const HolderId copy = world.tree.copy(holder);
  world.tree.detach(holder, 6.0);
  CHECK(world.tree.evict(1000, 0) == 0 && world.tree.depth(copy) == 40);
  world.tree.detach(copy, 7.0);
  CHECK(world.tree.evict(1000, 0) == 40);
  CHECK(world.tree.counts().nodes == 0 && world.map.counts().free == 512);
  world.check();
}

TEST(eviction_goes_leaf_by_leaf_least_recently_used_first) {
  World world(8);
  const HolderId a = world.compute(joined(range(0, 50), range(100, 110)));
  const HolderId b = world.compute(joined(range(0, 50), range(200, 220)));
  world.tree.detach(b, 10.0);
  world.tree.detach(a, 20.0);
  CHECK(world.tree.counts().candidates == 2);
  CHECK(world.tree.evict(500, 0) == 20);
  CHECK(world.tree.match(ns, joined(range(0, 50), range(200, 220))).tokens == 50);
  // What is left is one branch again, evicted from its tail.
  CHECK(world.tree.nodes().size() == 1 && world.tree.nodes()[0].last_used == 20.0);
  CHECK(world.tree.evict(10, 0) == 10);
  CHECK(world.tree.match(ns, joined(range(0, 50), range(100, 110))).tokens == 50);
  CHECK(world.tree.evict(500, 0) == 50);
  world.check();
}

TEST(eviction_passes_over_cells_that_sequences_keep) {
  World world(8);
  const HolderId a = world.tree.attach(ns, {}, 0, 1.0);
  world.tree.grow(a, ns, range(0, 10));
  const std::vector<Run> kept = world.take(0, 10);  // a sequence keeps these
  world.tree.publish(a, 0, kept, 1.0);
  world.tree.detach(a, 1.0);
  const HolderId b = world.compute(range(100, 105));
  world.tree.detach(b, 9.0);
  CHECK(world.tree.evict(100, 0) == 5);
  CHECK(world.tree.evict(100, 0) == 0 && world.map.counts().active == 10);
  world.check();
}

TEST(hits_are_counted_by_attach_and_given_to_the_policy) {
  CellMap map(2);
  RecordingLru recorder;
  PrefixTree tree(map, recorder);
  const HolderId holder = tree.attach(ns, {}, 0, 1.0);
  tree.grow(holder, ns, range(0, 10));
  map.take(SeqId{1}, {0, 10});
  const Run run{0, 0, 10, 0};
  tree.publish(holder, 0, {&run, 1}, 2.0);
  tree.detach(holder, 3.0);
  for (int i = 0; i < 4; ++i) tree.detach(tree.attach(ns, range(0, 10), 10, 4.0), 5.0);
  CHECK(recorder.known.size() == 1);
  const EvictionPolicy::Candidate facts = recorder.known.begin()->second;
  CHECK(facts.hits == 4 && facts.cells == 10 && facts.depth == 10 && facts.last_used == 5.0);
  const HolderId inside = tree.attach(ns, range(0, 10), 4, 6.0);  // splits: the rest stays a candidate
  CHECK(recorder.known.size() == 1 && recorder.known.begin()->second.cells == 6);
  CHECK(recorder.known.begin()->second.hits == 4);
  tree.detach(inside, 7.0);  // and is whole again, as its most used part was
  CHECK(recorder.known.size() == 1);
  const EvictionPolicy::Candidate whole = recorder.known.begin()->second;
  CHECK(whole.hits == 5 && whole.cells == 10 && whole.depth == 10 && whole.last_used == 7.0);
}

TEST(wrong_calls_throw_and_change_nothing) {
  World world(8);
  const HolderId holder = world.tree.attach(ns, {}, 0, 1.0);
  world.tree.grow(holder, ns, range(0, 20));
  world.publish(holder, 0, 5);
  const auto publish = [&](std::uint32_t begin, Run run) {
    world.tree.publish(holder, begin, {&run, 1}, 2.0);
  };
  world.map.take(SeqId{2}, {128, 64});
  CHECK_THROWS(IntegrityError, publish(6, {6, 128, 2, 0}));   // a hole before it
  CHECK_THROWS(IntegrityError, publish(5, {6, 128, 2, 0}));   // another position
  CHECK_THROWS(IntegrityError, publish(5, {5, 128, 16, 0}));  // behind the holder
  CHECK_THROWS(IntegrityError, publish(5, {5, 128, 2, 1}));   // rotated
  CHECK_THROWS(IntegrityError, publish(5, {5, 190, 4, 0}));   // free cells
  const Run twice[] = {{5, 130, 4, 0}, {9, 132, 4, 0}};       // a cell twice
  CHECK_THROWS(IntegrityError, world.tree.publish(holder, 5, twice, 2.0));
  CHECK_THROWS(IntegrityError, world.tree.attach(ns, range(0, 30), 21, 1.0));
  CHECK_THROWS(IntegrityError, world.tree.attach(ns, range(0, 3), 4, 1.0));
  CHECK_THROWS(InvalidArgument, world.tree.rewind(holder, 21, 1.0));
  CHECK_THROWS(InvalidArgument, world.tree.depth(HolderId{99}));
  CHECK_THROWS(InvalidArgument, PrefixTree(world.map, world.lru, nullptr));
  CHECK(world.tree.counts().ready_tokens == 5 && world.tree.depth(holder) == 20);
  world.check();
  world.tree.detach(holder, 1.0);
  CHECK_THROWS(InvalidArgument, world.tree.detach(holder, 1.0));
}

TEST(the_destructor_gives_the_cells_back) {
  CellMap map(2);
  LruPolicy lru;
  {
    PrefixTree tree(map, lru);
    const HolderId holder = tree.attach(ns, {}, 0, 1.0);
    tree.grow(holder, ns, range(0, 10));
    map.take(SeqId{1}, {0, 10});
    const Run run{0, 0, 10, 0};
    tree.publish(holder, 0, {&run, 1}, 2.0);
    map.drop_holder({0, 10});
    tree.detach(holder, 3.0);
    CHECK(map.counts().idle == 10 && lru.size() == 1);
  }
  CHECK(map.counts().free == 128 && lru.size() == 0);
}

// A tree that remembered where sessions once stood would have a node per token.
TEST(following_a_branch_token_by_token_leaves_one_node) {
  for (const EdgeHash hash : {default_edge_hash, constant_hash}) {
    constexpr Token length = 1000;
    World world(32, hash);
    const Tokens branch = range(0, length);
    const HolderId first = world.compute(branch);
    const HolderId follower = world.tree.attach(ns, {}, 0, 1.0);
    for (std::uint32_t i = 0; i < length; ++i) {
      world.tree.grow(follower, ns, std::span(branch).subspan(i, 1));
      CHECK(world.tree.counts().nodes <= 2);
    }
    CHECK(world.tree.counts().nodes == 1 && world.tree.depth(follower) == length);
    for (std::uint32_t depth = length; depth-- > 0;) {  // and all the way back
      world.tree.rewind(follower, depth, 2.0);
      CHECK(world.tree.counts().nodes <= 2);
    }
    CHECK(world.tree.counts().nodes == 1);
    world.check();
    world.tree.detach(first, 3.0);
    world.tree.detach(follower, 3.0);
    CHECK(world.tree.match(ns, branch).runs == (std::vector<Run>{{0, 0, length, 0}}));
    CHECK(world.tree.evict(length, 4.0) == length && world.tree.counts().nodes == 0);
    world.check();
  }
}

TEST(sessions_that_compute_the_same_in_lockstep_share_one_node) {
  World world(32);
  std::vector<HolderId> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(world.tree.attach(ns, {}, 0, 1.0));
  for (Token token = 0; token < 300; ++token) {
    for (const HolderId session : sessions) {
      world.tree.grow(session, ns, {&token, 1});
      world.publish(session, static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(token) + 1);
      CHECK(world.tree.counts().nodes <= 2);
    }
  }
  CHECK(world.tree.counts().nodes == 1 && world.tree.counts().ready_tokens == 300);
  world.check();
}

TEST(nodes_merge_when_a_branch_is_evicted) {
  World world(8);
  const HolderId kept = world.compute(range(0, 100));
  const HolderId gone = world.compute(joined(range(0, 60), {7, 8, 9}));
  world.tree.detach(gone, 10.0);
  CHECK(world.tree.counts().nodes == 3);
  CHECK(world.tree.evict(1000, 11.0) == 3);
  CHECK(world.tree.counts().nodes == 1 && world.tree.depth(kept) == 100);
  world.check();
  CHECK(world.tree.match(ns, range(0, 100)).runs == (std::vector<Run>{{0, 0, 100, 0}}));
}

TEST(announced_tokens_merge_too) {
  World world(8);
  const HolderId leader = world.tree.attach(ns, {}, 0, 1.0);
  world.tree.grow(leader, ns, range(0, 90));
  world.publish(leader, 0, 30);
  for (const std::uint32_t depth : {10U, 30U, 50U}) {
    const HolderId follower = world.tree.attach(ns, range(0, 90), depth, 2.0);
    CHECK(world.tree.counts().nodes == 2);
    world.tree.detach(follower, 3.0);
    CHECK(world.tree.counts().nodes == 1);
    const PrefixMatch match = world.tree.match(ns, range(0, 90));
    CHECK(match.tokens == 30 && match.pending == 60);
    world.check();
  }
  CHECK(world.publish(leader, 30, 90) == 60);
  world.check();
}

TEST(nodes_of_two_namespaces_do_not_merge) {
  World world(8);
  const HolderId holder = world.compute(range(0, 10));
  world.tree.grow(holder, other_ns, range(10, 20));
  world.publish(holder, 10, 20);
  CHECK(world.tree.counts().nodes == 2);
  world.tree.detach(holder, 5.0);
  CHECK(world.tree.counts().nodes == 2 && world.tree.counts().candidates == 1);
  CHECK(world.tree.match(ns, range(0, 20)).tokens == 10);
  world.check();
}

// The id of the lower part stays: re-keying its children would take as long as they are many.
TEST(merging_does_not_touch_the_children) {
  constexpr Token count = 100000;
  World world(2 * count / kBlockCells);
  const Tokens stem = range(0, 100);
  std::set<std::uint32_t> parents;
  for (Token i = 0; i < count; ++i) world.tree.detach(world.compute(joined(stem, {i})), world.now);
  const auto parent_of_all = [&] {
    parents.clear();
    for (const PrefixTree::NodeView& node : world.tree.nodes())
      if (node.children == 0) parents.insert(node.parent.value);
    CHECK(parents.size() == 1);
    return *parents.begin();
  };
  const std::uint32_t before = parent_of_all();
  for (std::uint32_t depth = 0; depth < 100; ++depth) {
    const HolderId holder = world.tree.attach(ns, stem, depth, ++world.now);
    CHECK(world.tree.counts().nodes == count + (depth == 0 ? 1 : 2));
    world.tree.detach(holder, ++world.now);
    CHECK(world.tree.counts().nodes == count + 1);
  }
  CHECK(parent_of_all() == before);
  world.check();
}

// One chain, grown token by token and cut into one node per token; runs of length 1.
TEST(a_long_chain_does_not_recurse) {
  constexpr std::uint32_t length = 100000;
  World world(2 * length / kBlockCells + 1);
  const Tokens tokens = range(0, length);
  const HolderId holder = world.tree.attach(ns, {}, 0, 1.0);
  for (std::uint32_t i = 0; i < length; ++i) {
    world.tree.grow(holder, ns, std::span(tokens).subspan(i, 1));
    world.map.take(SeqId{1}, {2 * i, 1});
    const Run run{static_cast<Pos>(i), 2 * i, 1, 0};
    CHECK(world.tree.publish(holder, i, {&run, 1}, 1.0) == 1);
    world.map.drop_holder({2 * i, 1});
  }
  CHECK(world.tree.counts().nodes == 1);
  std::vector<HolderId> holders;  // one at each token
  for (std::uint32_t depth = length; depth > 0; --depth) {
    world.tree.rewind(holder, depth, 2.0);
    holders.push_back(world.tree.copy(holder));
  }
  CHECK(world.tree.counts().nodes == length);
  CHECK(world.tree.match(ns, tokens).runs.size() == length);
  world.check();
  world.tree.detach(holder, 3.0);
  std::shuffle(holders.begin(), holders.end(), std::mt19937(1));
  for (const HolderId each : holders) world.tree.detach(each, 3.0);
  CHECK(world.tree.counts().nodes == 1);
  CHECK(world.tree.match(ns, tokens).runs.size() == length);
  world.check();
  std::uint32_t freed = 0;
  for (std::uint32_t step = 1; step > 0; freed += step) step = world.tree.evict(1, 4.0);
  CHECK(freed == length && world.tree.counts().nodes == 0);
  world.check();
}

// Namespaces that alternate keep the nodes apart without a holder.
TEST(a_long_chain_without_holders_does_not_recurse) {
  constexpr std::uint32_t length = 100000;
  World world(length / kBlockCells + 1);
  const HolderId holder = world.tree.attach(ns, {}, 0, 1.0);
  for (Token i = 0; i < static_cast<Token>(length); ++i)
    world.tree.grow(holder, NamespaceId{static_cast<std::uint32_t>(i) % 2}, {&i, 1});
  world.publish(holder, 0, length);
  world.tree.detach(holder, 3.0);
  CHECK(world.tree.counts().nodes == length && world.tree.counts().candidates == 1);
  CHECK(world.tree.nodes().size() == length);
  world.check();
  std::uint32_t freed = 0;
  for (std::uint32_t step = 1; step > 0; freed += step) step = world.tree.evict(10, 4.0);
  CHECK(freed == length && world.tree.counts().nodes == 0);
  world.check();
}

TEST(a_node_with_many_children) {
  constexpr Token count = 20000;
  World world(2 * count / kBlockCells);
  for (Token i = 0; i < count; ++i) world.tree.detach(world.compute({7, i}), world.now);
  CHECK(world.tree.counts().nodes == count + 1);
  CHECK(world.tree.match(ns, Tokens{7, count / 2}).tokens == 2);
  world.check();
  for (Token i = 0; i < count; ++i) {
    CHECK(world.tree.evict(1, 0) == 1);
    CHECK(world.tree.match(ns, Tokens{7, i}).tokens == 1);
  }
  CHECK(world.tree.counts().nodes == 1);
  world.check();
}
