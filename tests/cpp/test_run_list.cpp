#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "find_cells.h"
#include "pykv/errors.h"
#include "pykv/run_list.h"

using namespace pykv;

namespace {

constexpr auto adopt = RunList::Hold::adopt;
constexpr auto share = RunList::Hold::share;
constexpr std::uint32_t kLeaf = 32;  // pieces of a leaf

// Grows `list` by `count` tokens in the cells that the map finds.
bool grow(CellMap& map, RunList& list, SeqId seq, std::uint32_t count) {
  CellRequest request{seq, count, std::nullopt};
  if (const auto last = list.last()) request.after = last->cell + last->length - 1;
  const auto found = find_cells(map, {&request, 1});
  if (!found) return false;
  for (const CellSpan span : found->front()) {
    map.take(seq, span);
    list.append({list.end(), span.begin, span.length, 0}, adopt);
  }
  return true;
}

void take_and_append(CellMap& map, RunList& list, const Run& run) {
  map.take(SeqId{1}, {run.cell, run.length});
  list.append(run, adopt);
}

}  // namespace

TEST(an_empty_list) {
  CellMap map(1);
  RunList list(map);
  CHECK(list.tokens() == 0 && list.runs() == 0 && list.begin() == 0 && list.end() == 0);
  CHECK(!list.last() && !list.find(0) && list.to_vector().empty());
  list.truncate(0);
  list.append({0, 0, 0, 0}, share);
  list.for_each({0, 10}, [](const Run&) { CHECK(false); });
  list.check_integrity();
}

TEST(a_run_next_to_the_last_one_extends_it) {
  CellMap map(4);
  RunList list(map);
  take_and_append(map, list, {0, 60, 10, 0});
  take_and_append(map, list, {10, 70, 1, 0});
  take_and_append(map, list, {11, 71, 80, 0});
  CHECK(list.to_vector() == (std::vector<Run>{{0, 60, 91, 0}}));
  take_and_append(map, list, {91, 200, 5, 0});   // elsewhere
  take_and_append(map, list, {96, 205, 5, 3});   // rotated
  take_and_append(map, list, {110, 210, 5, 3});  // behind a gap
  CHECK(list.runs() == 4 && list.tokens() == 106 && list.end() == 115);
  CHECK(list.find(95) == (Run{91, 200, 5, 0}));
  CHECK(list.find(50) == (Run{0, 60, 91, 0}));
  CHECK(!list.find(101) && !list.find(109) && !list.find(115) && !list.find(-1));
  CHECK(list.last() == (Run{110, 210, 5, 3}));
  list.check_integrity();
}

TEST(wrong_arguments_change_nothing) {
  CellMap map(1);
  RunList list(map);
  take_and_append(map, list, {0, 0, 8, 0});
  CHECK_THROWS(InvalidArgument, list.append({6, 8, 1, 0}, share));
  CHECK_THROWS(InvalidArgument, list.append({-1, 8, 1, 0}, share));
  CHECK_THROWS(InvalidArgument, list.append({kMaxPos - 1, 0, 2, 0}, share));
  CHECK_THROWS(IntegrityError, list.append({8, 8, 1, 0}, share));  // a free cell
  CHECK_THROWS(InvalidArgument, list.truncate(-1));
  CHECK(list.to_vector() == (std::vector<Run>{{0, 0, 8, 0}}));
  CHECK(map.holders(0) == 1 && map.is_free(8));
}

TEST(a_fork_shares_until_both_are_gone) {
  CellMap map(4);
  auto parent = std::make_unique<RunList>(map);
  CHECK(grow(map, *parent, SeqId{1}, 100));
  CHECK(parent->shared_cells() == 0);
  RunList child(*parent);
  CHECK(parent->shared_cells() == 100 && map.holders(50) == 1);
  CHECK(grow(map, *parent, SeqId{1}, 10));
  CHECK(grow(map, child, SeqId{2}, 10));
  CHECK(parent->to_vector() == (std::vector<Run>{{0, 0, 110, 0}}));
  CHECK(child.to_vector() == (std::vector<Run>{{0, 0, 100, 0}, {100, 128, 10, 0}}));
  CHECK(parent->shared_cells() == 100 && child.shared_cells() == 100);
  parent.reset();
  CHECK(map.counts().active == 110 && map.is_free(105) && !map.is_free(99));
  CHECK(child.shared_cells() == 0);
  child.truncate(70);
  CHECK(map.counts().active == 70);
  child.check_integrity();
  map.check_integrity();
}

TEST(shared_runs_hold_their_cells_themselves) {
  CellMap map(2);
  RunList list(map), other(map);
  CHECK(grow(map, list, SeqId{1}, 80));
  other.append({0, 10, 60, 0}, share);
  CHECK(map.holders(9) == 1 && map.holders(10) == 2 && map.holders(69) == 2);
  CHECK(list.shared_cells() == 60);
  list = RunList(map);
  CHECK(map.counts().active == 60);
  other = std::move(list);
  CHECK(map.counts().free == 128);
}

// A step works on a copy and drops the old list, or the copy.
TEST(a_copy_that_grows_keeps_one_run) {
  CellMap map(64);
  RunList list(map);
  for (std::uint32_t step = 0; step < 1000; ++step) {
    RunList next(list);
    CHECK(grow(map, next, SeqId{1}, 1));
    CHECK(list.tokens() == step);
    if (step % 3 == 0) {
      RunList dropped(next);
      CHECK(grow(map, dropped, SeqId{1}, 5));
    }
    list = std::move(next);
    CHECK(list.runs() == 1 && map.counts().active == step + 1);
  }
  list.check_integrity();
}

// DESIGN.md: sessions that grow side by side keep long runs.
TEST(sixteen_sequences_side_by_side_keep_long_runs) {
  CellMap map(16 * 512 / kBlockCells);
  std::vector<RunList> lists(16, RunList(map));
  for (int step = 0; step < 512; ++step)
    for (std::uint64_t i = 0; i < lists.size(); ++i) CHECK(grow(map, lists[i], SeqId{i + 1}, 1));
  for (const RunList& list : lists) {
    CHECK(list.tokens() == 512);
    CHECK(list.runs() <= 512 / kBlockCells + 1);
    list.check_integrity();
  }
  CHECK(map.counts().free == 0);
  map.check_integrity();
}

// Work done: what is not at the edges of a span is shared, not visited.
TEST(a_long_span_is_shared_by_a_few_nodes) {
  constexpr std::uint32_t count = 100000;
  CellMap map(2 * count / kBlockCells + 1);
  RunList list(map);
  for (std::uint32_t i = 0; i < count; ++i) take_and_append(map, list, {static_cast<Pos>(i), 2 * i, 1, 0});
  RunList copy(map);
  copy.insert(list, {77, 99000});
  CHECK(copy.runs() == 99000 - 77 && copy.begin() == 77 && copy.end() == 99000);
  std::uint32_t held_twice = 0;  // cells that the copy holds itself
  for (std::uint32_t i = 0; i < count; ++i) held_twice += map.holders(2 * i) - 1;
  CHECK(held_twice <= 4 * kLeaf);
  copy.check_integrity();

  RunList less(list);
  less.remove({500, 50001});
  CHECK(less.tokens() == count - 49501 && less.next(500) == 50001 && less.previous(50001) == 499);
  held_twice = 0;
  for (std::uint32_t i = 0; i < count; ++i) held_twice += map.holders(2 * i) - 1;
  CHECK(held_twice <= 10 * kLeaf);
  less.check_integrity();
  CHECK_THROWS(InvalidArgument, copy.insert(list, {98999, 99100}));
  CHECK(copy.end() == 99000);
}

TEST(tokens_of_two_lists_interleave) {
  CellMap map(4);
  RunList list(map), other(map);
  take_and_append(map, list, {0, 0, 30, 0});
  take_and_append(map, other, {0, 64, 30, 0});
  list.remove({5, 10});
  list.remove({20, 25});
  other.remove({10, 20});
  CHECK_THROWS(InvalidArgument, list.insert(other, {5, 26}));
  CHECK(list.tokens() == 20);
  list.insert(other, {5, 25});  // into two gaps
  CHECK(list.to_vector() ==
        (std::vector<Run>{{0, 0, 5, 0}, {5, 69, 5, 0}, {10, 10, 10, 0}, {20, 84, 5, 0}, {25, 25, 5, 0}}));
  CHECK(map.holders(69) == 2);
  list.insert(other, {30, 100});
  list.insert(list, {30, 100});
  CHECK(list.tokens() == 30);
  list.check_integrity();
}

TEST(tokens_may_share_a_position) {
  CellMap map(4);
  RunList list(map), other(map);
  for (Pos i = 0; i < 60; ++i) take_and_append(map, list, {i / 3, static_cast<CellIndex>(i), 1, 0});
  CHECK(list.tokens() == 60 && list.end() == 20 && list.runs() == 41);
  CHECK(list.next(7) == 7 && list.previous(7) == 6 && !list.next(20));
  list.check_integrity();
  std::uint32_t tokens = 0;
  list.for_each({5, 10}, [&](const Run& run) { tokens += run.length; });
  CHECK(tokens == 15);
  other.insert(list, {2, 4});
  other.insert(list, {18, 20});
  list.remove({2, 19});
  CHECK(list.tokens() == 9 && other.tokens() == 12);
  CHECK_THROWS(InvalidArgument, other.insert(list, {0, 20}));
  CHECK_THROWS(InvalidArgument, other.append({18, 100, 1, 0}, share));
  list.remove({19, 20});
  list.insert(other, {0, 20});  // interleaving with nothing
  CHECK(list.tokens() == 18 && list.previous(18) == 3);
  RunList third(map);
  third.insert(list, {0, 3});
  list.remove({0, 1});
  list.remove({2, 3});
  third.remove({1, 2});
  list.insert(third, {0, 3});  // 0 and 2 around 1
  CHECK(list.tokens() == 18);
  CHECK(list.shift_room({2, 4}).highest == 14 && list.shift_room({2, 4}).lowest == 0);
  list.shift({2, 4}, 14, 1);
  list.truncate(18);
  CHECK(list.tokens() == 12 && list.end() == 18);
  CHECK(list.last() == (Run{17, 11, 1, 1}));
  list.check_integrity();
}

TEST(what_a_list_owns_shows_in_its_holders) {
  CellMap map(64);
  RunList list(map);
  for (std::uint32_t i = 0; i < 2000; ++i) take_and_append(map, list, {static_cast<Pos>(i), 2 * i, 1, 0});
  RunList fork(list);
  CHECK(map.holders(2 * 1000) == 1);
  fork.own({1000, 1001});
  CHECK(map.holders(2 * 1000) == 2 && map.holders(2 * 500) == 1 && map.holders(2 * 1500) == 1);
  fork.own({0, 2000});
  for (std::uint32_t i = 0; i < 2000; ++i) CHECK(map.holders(2 * i) == 2);
  CHECK(fork.to_vector() == list.to_vector() && fork.shared_cells() == 2000);
  list = RunList(map);
  CHECK(fork.shared_cells() == 0);
  fork.check_integrity();
  map.check_integrity();
}

TEST(a_window_that_slides_stays_shallow) {
  CellMap map(64);
  RunList list(map);
  Pos end = 0;
  for (int step = 0; step < 20000; ++step) {
    CHECK(grow(map, list, SeqId{1}, 1));
    ++end;
    if (step >= 1000) list.remove({0, end - 1000});
    if (step % 2000 == 0) list.check_integrity();
  }
  CHECK(list.begin() == end - 1000 && list.tokens() == 1000 && map.counts().active == 1000);
}

TEST(a_shift_keeps_its_place_among_the_others) {
  CellMap map(4);
  RunList list(map);
  take_and_append(map, list, {0, 0, 30, 0});
  RunList other(list);
  list.remove({10, 20});
  list.shift({20, 30}, -10, -10);
  CHECK(list.to_vector() == (std::vector<Run>{{0, 0, 10, 0}, {10, 20, 10, -10}}));
  CHECK_THROWS(InvalidArgument, list.shift({10, 20}, -1, -1));
  CHECK_THROWS(InvalidArgument, list.shift({0, 5}, 6, 6));
  CHECK_THROWS(InvalidArgument, list.shift({0, 20}, -1, 0));
  CHECK_THROWS(InvalidArgument, list.shift({0, 20}, kMaxPos - 19, 0));
  CHECK_THROWS(InvalidArgument, list.shift({10, kMaxPos}, std::numeric_limits<Pos>::min(), 0));
  CHECK_THROWS(InvalidArgument, list.shift({10, kMaxPos}, std::numeric_limits<Pos>::max(), 0));
  list.shift({0, 20}, kMaxPos - 20, 0);
  CHECK(list.end() == kMaxPos);
  list.shift({0, kMaxPos}, -list.begin(), 0);
  CHECK(list.end() == 20);
  CHECK(other.to_vector() == (std::vector<Run>{{0, 0, 30, 0}}));
  CHECK(map.counts().active == 30);
}

TEST(runs_of_length_one_stay_correct_and_shallow) {
  constexpr std::uint32_t count = 20000;
  CellMap map(2 * count / kBlockCells + 1);
  RunList list(map);
  for (std::uint32_t i = 0; i < count; ++i) take_and_append(map, list, {static_cast<Pos>(i), 2 * i, 1, 0});
  CHECK(list.runs() == count);
  CHECK(list.find(12345) == (Run{12345, 24690, 1, 0}));
  list.check_integrity();
  RunList copy(list);
  copy.truncate(777);
  CHECK(copy.runs() == 777 && copy.last() == (Run{776, 1552, 1, 0}));
  copy.check_integrity();
  list = RunList(map);
  CHECK(map.counts().active == 777);
}

namespace {

// A list as a model: its tokens, one by one.
struct Token1 {
  Pos pos;
  CellIndex cell;
  Pos rotation;
};
using Model = std::vector<Token1>;

std::vector<Run> runs_of(const Model& model, Span span) {
  std::vector<Run> runs;
  for (const Token1& token : model) {
    if (token.pos < span.begin || token.pos >= span.end) continue;
    const bool continues = !runs.empty() && runs.back().end() == token.pos &&
                           runs.back().cell + runs.back().length == token.cell &&
                           runs.back().rotation == token.rotation;
    if (continues)
      ++runs.back().length;
    else
      runs.push_back({token.pos, token.cell, 1, token.rotation});
  }
  return runs;
}

void compare(const RunList& list, const Model& model, std::mt19937& random) {
  list.check_integrity();
  const std::vector<Run> all = runs_of(model, {0, kMaxPos});
  CHECK(list.to_vector() == all);
  CHECK(list.tokens() == model.size() && list.runs() == all.size());
  CHECK(list.begin() == (model.empty() ? 0 : model.front().pos));
  CHECK(list.end() == (model.empty() ? 0 : model.back().pos + 1));
  CHECK(list.last() == (all.empty() ? std::nullopt : std::optional(all.back())));
  const Pos begin = static_cast<Pos>(random() % (static_cast<std::uint32_t>(list.end()) + 3));
  const Span span{begin, begin + static_cast<Pos>(random() % 300)};
  std::vector<Run> clipped;
  list.for_each(span, [&](const Run& run) { clipped.push_back(run); });
  CHECK(clipped == runs_of(model, span));
  const auto found = std::find_if(all.rbegin(), all.rend(),
                                  [&](const Run& run) { return run.first <= begin && begin < run.end(); });
  CHECK(list.find(begin) == (found == all.rend() ? std::nullopt : std::optional(*found)));
}

struct World {
  explicit World(std::uint32_t blocks) : map(blocks), lists(6, RunList(map)), models(6) {}

  void append(std::size_t i, std::mt19937& random) {
    const std::uint32_t length = random() % 4 == 0 ? 1 + random() % 150 : 1 + random() % 3;
    CellRequest request{SeqId{i + 1}, length, std::nullopt};
    if (!models[i].empty() && random() % 4 != 0) request.after = models[i].back().cell;
    const auto found = find_cells(map, {&request, 1});
    if (!found) return;
    for (const CellSpan span : found->front()) {
      const auto dice = random() % 20;
      const Pos gap = dice < 2 ? 2 : dice == 2 && lists[i].end() > 0 ? -1 : 0;
      const Pos rotation = random() % 8 == 0 ? 5 : 0;
      map.take(SeqId{i + 1}, span);
      add(i, {lists[i].end() + gap, span.begin, span.length, rotation}, adopt);
    }
  }

  void share_from(std::size_t i, std::size_t j, std::mt19937& random) {
    if (lists[j].runs() == 0) return;
    const std::vector<Run> runs = lists[j].to_vector();
    Run run = runs[random() % runs.size()];
    run.first = lists[i].end();
    if (static_cast<std::uint32_t>(run.first) + run.length < 5000) add(i, run, share);
  }

  void add(std::size_t i, const Run& run, RunList::Hold hold) {
    lists[i].append(run, hold);
    for (std::uint32_t k = 0; k < run.length; ++k)
      models[i].push_back({run.first + static_cast<Pos>(k), run.cell + k, run.rotation});
  }

  // Inserts what list j has in a span, or finds that list i has a position of it.
  void insert(std::size_t i, std::size_t j, std::mt19937& random) {
    const Pos behind = lists[i].end() + static_cast<Pos>(random() % 3);
    const Span span = random() % 2 == 0 ? any_span(j, random) : Span{behind, behind + 1500};
    Model joined = models[i];
    bool has_one = false;
    for (const Token1& token : models[j]) {
      if (token.pos < span.begin || token.pos >= span.end) continue;
      has_one = has_one || std::any_of(models[i].begin(), models[i].end(),
                                       [&](const Token1& other) { return other.pos == token.pos; });
      joined.insert(std::find_if(joined.begin(), joined.end(),
                                 [&](const Token1& other) { return other.pos > token.pos; }),
                    token);
    }
    if (has_one) {
      CHECK_THROWS(InvalidArgument, lists[i].insert(lists[j], span));
      return;
    }
    lists[i].insert(lists[j], span);
    models[i] = std::move(joined);
  }

  Span any_span(std::size_t i, std::mt19937& random) const {
    const Pos begin = static_cast<Pos>(random() % (static_cast<std::uint32_t>(lists[i].end()) + 1));
    return {begin, begin + static_cast<Pos>(random() % (random() % 3 == 0 ? 1000 : 40))};
  }

  void remove(std::size_t i, Span span) {
    lists[i].remove(span);
    std::erase_if(models[i],
                  [&](const Token1& token) { return token.pos >= span.begin && token.pos < span.end; });
  }

  void remove_front(std::size_t i, Pos begin) {
    lists[i].remove_front(begin);
    std::erase_if(models[i], [&](const Token1& token) { return token.pos < begin; });
  }

  // Moves a span as far as it may go, or refuses to go further.
  void shift(std::size_t i, Span span, std::mt19937& random) {
    const Pos limit = std::max(6000, lists[i].end() + 2);
    Pos before = -1, first = kMaxPos, last = -1, behind = limit;
    for (const Token1& token : models[i]) {
      if (token.pos < span.begin) before = token.pos;
      if (token.pos >= span.end) behind = std::min(behind, token.pos);
      if (token.pos < span.begin || token.pos >= span.end) continue;
      first = std::min(first, token.pos);
      last = token.pos;
    }
    CHECK(lists[i].previous(span.begin) == (before < 0 ? std::nullopt : std::optional(before)));
    const RunList::ShiftRoom room = lists[i].shift_room(span);
    if (first > last) {
      CHECK(room.lowest == 0 && room.highest == 0);
      return;
    }
    CHECK(room.lowest == before + 1 - first);
    CHECK(room.highest == (behind < limit ? behind : kMaxPos) - 1 - last);
    CHECK_THROWS(InvalidArgument, lists[i].shift(span, room.lowest - 1, 0));
    CHECK_THROWS(InvalidArgument, lists[i].shift(span, room.highest + 1, 0));
    const auto choices = static_cast<std::uint32_t>(behind - last - room.lowest);
    const Pos delta = room.lowest + static_cast<Pos>(random() % choices);
    const Pos rotation = random() % 2 == 0 ? delta : 0;
    CHECK(room.has(delta));
    lists[i].shift(span, delta, rotation);
    for (Token1& token : models[i]) {
      if (token.pos < span.begin || token.pos >= span.end) continue;
      token.pos += delta;
      token.rotation += rotation;
    }
  }

  void truncate(std::size_t i, Pos end) {
    lists[i].truncate(end);
    std::erase_if(models[i], [&](const Token1& token) { return token.pos >= end; });
  }

  // A cell is held exactly while some list has it.
  void check_cells() const {
    map.check_integrity();
    std::vector<bool> held(map.counts().capacity);
    for (const Model& model : models)
      for (const Token1& token : model) held[token.cell] = true;
    for (CellIndex cell = 0; cell < map.counts().capacity; ++cell) CHECK(map.is_free(cell) != held[cell]);
  }

  CellMap map;
  std::vector<RunList> lists;
  std::vector<Model> models;
};

}  // namespace

TEST(random_operations_equal_a_model) {
  std::mt19937 random(5);
  for (const std::uint32_t blocks : {8U, 60U}) {
    World world(blocks);
    for (int step = 0; step < 6000; ++step) {
      const std::size_t i = random() % world.lists.size(), j = random() % world.lists.size();
      const auto dice = random() % 34;
      if (dice < 12) world.append(i, random);
      if (dice == 12) world.share_from(i, j, random);
      if (dice == 13 || dice == 14) {
        world.lists[i] = world.lists[j];
        world.models[i] = world.models[j];
      }
      if (dice == 15) {
        world.lists[i] = RunList(world.map);
        world.models[i].clear();
        world.map.drop_lease(SeqId{i + 1});
      }
      if (dice > 15 && dice < 20) {
        const auto end = static_cast<std::uint32_t>(world.lists[i].end());
        world.truncate(i, static_cast<Pos>(end - std::min<std::uint32_t>(end, random() % 120)));
      }
      if (dice == 20 || dice == 21) world.insert(i, j, random);
      if (dice > 21 && dice < 25) world.remove(i, world.any_span(i, random));
      if (dice > 27) {
        const Pos begin = world.lists[i].begin(), length = world.lists[i].end() - begin;
        const auto most = random() % 8 == 0 ? static_cast<std::uint32_t>(length) + 2U : 9U;
        world.remove_front(i, begin - 1 + static_cast<Pos>(random() % most));
      }
      if (dice > 24 && dice < 28) world.shift(i, world.any_span(i, random), random);
      compare(world.lists[i], world.models[i], random);
      if (step % 100 == 0) world.check_cells();
    }
  }
}
