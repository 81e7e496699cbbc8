#include <cstdint>
#include <limits>
#include <map>
#include <random>

#include "check.h"
#include "pykv/errors.h"
#include "pykv/policy.h"

using namespace pykv;

namespace {

EvictionPolicy::Candidate leaf(std::uint32_t node, double last_used, std::uint32_t depth = 1) {
  return {NodeId{node}, 1, depth, last_used, 0};
}

}  // namespace

TEST(lru_takes_the_oldest_then_the_deepest_then_the_lowest_id) {
  LruPolicy lru;
  CHECK(!lru.victim().has_value());
  lru.candidate(leaf(4, 2.0, 7));
  lru.candidate(leaf(3, 2.0, 9));
  lru.candidate(leaf(9, 3.0, 99));
  lru.candidate(leaf(2, 2.0, 9));
  CHECK(lru.size() == 4);
  for (const std::uint32_t expected : {2U, 3U, 4U, 9U}) {
    CHECK(lru.victim() == NodeId{expected});
    CHECK(lru.victim() == NodeId{expected});  // asking removes nothing
    lru.withdraw(NodeId{expected});
  }
  CHECK(lru.size() == 0);
}

TEST(lru_updates_facts_and_ignores_unknown_nodes) {
  LruPolicy lru;
  lru.candidate(leaf(1, 1.0));
  lru.candidate(leaf(2, 2.0));
  lru.candidate(leaf(1, 3.0));
  CHECK(lru.size() == 2);
  CHECK(lru.victim() == NodeId{2});
  lru.withdraw(NodeId{77});
  lru.withdraw(NodeId{2});
  lru.withdraw(NodeId{2});
  CHECK(lru.victim() == NodeId{1});
}

TEST(lru_equals_a_sorted_model) {
  std::mt19937 random(7);
  LruPolicy lru;
  std::map<std::uint32_t, std::tuple<double, std::uint32_t, std::uint32_t>> model;
  for (int step = 0; step < 20000; ++step) {
    const std::uint32_t node = random() % 200;
    if (random() % 3 != 0) {
      const auto facts = leaf(node, random() % 20, random() % 5);
      lru.candidate(facts);
      model[node] = {facts.last_used, ~facts.depth, node};
    } else {
      lru.withdraw(NodeId{node});
      model.erase(node);
    }
    CHECK(lru.size() == model.size());
    if (model.empty()) continue;
    auto least = model.begin();
    for (auto it = model.begin(); it != model.end(); ++it)
      if (it->second < least->second) least = it;
    CHECK(lru.victim() == NodeId{least->first});
  }
}

TEST(watermarks_are_checked) {
  validate({0.0, 0.0});
  validate({0.0, 1.0});
  validate({1.0, 1.0});
  CHECK_THROWS(InvalidArgument, validate({0.2, 0.1}));
  CHECK_THROWS(InvalidArgument, validate({-0.1, 0.1}));
  CHECK_THROWS(InvalidArgument, validate({0.1, 1.1}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS(InvalidArgument, validate({nan, 0.1}));
  CHECK_THROWS(InvalidArgument, validate({0.1, nan}));
  CHECK_THROWS(InvalidArgument, reclaim_target({0.2, 0.1}, 10, 10, 0));
}

TEST(reclaim_starts_below_low_and_stops_at_high) {
  const Watermarks marks{0.05, 0.10};
  CHECK(reclaim_target(marks, 1000, 50, 0) == 0);
  CHECK(reclaim_target(marks, 1000, 49, 0) == 51);
  CHECK(reclaim_target(marks, 1000, 60, 10) == 0);
  CHECK(reclaim_target(marks, 1000, 60, 11) == 51);
  CHECK(reclaim_target(marks, 1000, 10, 30) == 120);  // the wanted ones come on top
  CHECK(reclaim_target({0.0, 0.0}, 1000, 0, 0) == 0);
  CHECK(reclaim_target({0.0, 0.0}, 1000, 3, 5) == 2);
  CHECK(reclaim_target({1.0, 1.0}, 1000, 999, 0) == 1);
}

TEST(reclaim_never_asks_for_more_than_is_held) {
  CHECK(reclaim_target({1.0, 1.0}, 1000, 400, 4000000000U) == 600);
  CHECK(reclaim_target({0.5, 1.0}, 0, 0, 10) == 0);
}

TEST(victim_is_least_important_then_furthest_over_floor_then_youngest) {
  const SessionFacts oldest{1, 0, 900, 1};
  {
    const SessionFacts sessions[] = {oldest, {2, 5, 0, 2}, {3, 1, 0, 3}, {4, 3, 999, 4}};
    CHECK(choose_victim(sessions) == 2U);
  }
  {
    const SessionFacts sessions[] = {oldest, {2, 1, -5, 2}, {3, 1, -9, 3}, {4, 2, 50, 4}};
    CHECK(choose_victim(sessions) == 1U);
  }
  {
    const SessionFacts sessions[] = {{2, 1, 7, 8}, oldest, {3, 1, 7, 9}, {4, 1, 7, 3}};
    CHECK(choose_victim(sessions) == 2U);
  }
}

TEST(victim_is_never_the_oldest) {
  const SessionFacts sessions[] = {{1, 9, 0, 5}, {2, -9, 1 << 30, 4}};
  CHECK(choose_victim(sessions) == 0U);
  CHECK(!choose_victim(std::span(sessions, 1)).has_value());
  CHECK(!choose_victim({}).has_value());
}
