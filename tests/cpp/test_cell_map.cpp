#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "check.h"
#include "find_cells.h"
#include "pykv/cell_map.h"
#include "pykv/errors.h"

using namespace pykv;

namespace {

using Found = std::vector<std::vector<CellSpan>>;

std::vector<CellSpan> find_one(const CellMap& map, SeqId seq, std::uint32_t cells,
                               std::optional<CellIndex> after = std::nullopt) {
  const CellRequest request{seq, cells, after};
  const auto found = find_cells(map, {&request, 1});
  return found ? found->front() : std::vector<CellSpan>{};
}

void take_all(CellMap& map, SeqId seq, const std::vector<CellSpan>& spans) {
  for (const CellSpan span : spans) map.take(seq, span);
}

std::uint32_t total(const std::vector<CellSpan>& spans) {
  std::uint32_t sum = 0;
  for (const CellSpan span : spans) sum += span.length;
  return sum;
}

constexpr SeqId a{1}, b{2}, c{3};

}  // namespace

TEST(a_new_map_is_free) {
  const CellMap map(3);
  CHECK(map.counts().capacity == 192);
  CHECK(map.counts().free == 192);
  CHECK(map.largest_free_span() == 192);
  CHECK(map.block_is_free(2));
  CHECK(map.is_free(191));
  map.check_integrity();
  CHECK_THROWS(InvalidArgument, CellMap(0));
  CHECK_THROWS(InvalidArgument, CellMap(1U << 26));
}

TEST(holders_and_tree_decide_when_a_cell_is_free) {
  CellMap map(2);
  map.take(a, {60, 10});
  map.add_holder({62, 4});
  map.set_in_tree({60, 6});
  CHECK(map.holders(60) == 1 && map.holders(62) == 2 && map.holders(66) == 1 && map.holders(70) == 0);
  CHECK(map.in_tree(65) && !map.in_tree(66));
  CHECK(map.shared_cells({60, 10}) == 4);
  map.check_integrity();
  map.drop_holder({60, 10});
  CHECK(map.counts().active == 4 && map.counts().idle == 2 && map.counts().free == 122);
  map.drop_holder({62, 4});
  CHECK(map.counts().active == 0 && map.counts().idle == 6);
  map.clear_in_tree({60, 6});
  CHECK(map.counts().free == 128);
  map.check_integrity();
}

TEST(wrong_changes_throw_and_change_nothing) {
  CellMap map(2);
  map.take(a, {10, 100});
  map.set_in_tree({10, 5});
  CHECK_THROWS(IntegrityError, map.take(b, {5, 6}));
  CHECK_THROWS(IntegrityError, map.take(b, {120, 9}));
  CHECK_THROWS(IntegrityError, map.take(b, {120, 0xffffffffU}));
  CHECK_THROWS(IntegrityError, map.add_holder({109, 2}));
  CHECK_THROWS(IntegrityError, map.drop_holder({9, 2}));
  CHECK_THROWS(IntegrityError, map.set_in_tree({12, 20}));
  CHECK_THROWS(IntegrityError, map.clear_in_tree({12, 20}));
  CHECK_THROWS(IntegrityError, map.holders(128));
  CHECK_THROWS(IntegrityError, map.drop_holder(0, std::uint64_t{3} << 9));
  CHECK_THROWS(IntegrityError, map.drop_holder(2, 1));
  CHECK_THROWS(IntegrityError, map.add_holder(1U << 26, 1));
  CHECK(map.holders(10) == 1 && map.holders(109) == 1 && map.is_free(9) && map.is_free(110));
  CHECK(map.counts().active == 100);
  map.check_integrity();
}

TEST(a_change_that_fails_at_its_second_extent_undoes_the_first) {
  CellMap map(1);
  map.take(a, {0, 30});
  map.add_holder({0, 10});
  map.set_in_tree({20, 10});
  map.drop_holder({20, 10});  // extents with 2 holders, 1 holder, the tree's flag alone
  CHECK_THROWS(IntegrityError, map.drop_holder(0, (std::uint64_t{1} << 25) - 1));
  CHECK_THROWS(IntegrityError, map.set_in_tree(CellSpan{5, 20}));
  CHECK_THROWS(IntegrityError, map.clear_in_tree(CellSpan{0, 25}));
  CHECK_THROWS(IntegrityError, map.add_holder(0, (std::uint64_t{1} << 31) - 1));
  CHECK(map.holders(0) == 2 && map.holders(9) == 2 && map.holders(10) == 1 && map.holders(20) == 0);
  CHECK(!map.in_tree(19) && map.in_tree(20) && map.counts().active == 20 && map.counts().idle == 10);
  map.check_integrity();
}

TEST(the_own_lease_comes_first_and_continues_behind_the_last_cell) {
  CellMap map(4);
  take_all(map, a, find_one(map, a, 10));
  CHECK(find_one(map, a, 5, 9) == (std::vector<CellSpan>{{10, 5}}));
  CHECK(find_one(map, a, 60, 9) == (std::vector<CellSpan>{{10, 60}}));  // into the next block
  CHECK(find_one(map, b, 5) == (std::vector<CellSpan>{{64, 5}}));
}

TEST(whole_blocks_come_before_holes_and_leases_last) {
  CellMap map(3);
  take_all(map, a, find_one(map, a, 10));
  map.drop_lease(a);                       // block 0: a hole of 54
  take_all(map, b, find_one(map, b, 10));  // block 1, leased
  CHECK(find_one(map, c, 64) == (std::vector<CellSpan>{{128, 64}}));
  CHECK(find_one(map, c, 70) == (std::vector<CellSpan>{{128, 64}, {10, 6}}));
  const auto all = find_one(map, c, 64 + 54 + 54);
  CHECK(total(all) == 172);
  CHECK(find_one(map, c, 173).empty());
}

TEST(a_stolen_lease_leaves_the_owner_room_to_go_on) {
  CellMap map(1);
  take_all(map, a, find_one(map, a, 4));
  const auto stolen = find_one(map, b, 1);
  CHECK(stolen == (std::vector<CellSpan>{{34, 1}}));
  take_all(map, b, stolen);
  CHECK(find_one(map, a, 8, 3) == (std::vector<CellSpan>{{4, 8}}));
  CHECK(find_one(map, b, 8, 34) == (std::vector<CellSpan>{{35, 8}}));
  map.check_integrity();
}

TEST(one_search_serves_all_or_nobody_and_never_gives_a_cell_twice) {
  CellMap map(2);
  const CellRequest fits[] = {{a, 1, {}}, {b, 1, {}}, {c, 126, {}}};
  const auto found = find_cells(map, fits);
  CHECK(found.has_value() && found->size() == 3);
  for (std::size_t i = 0; i < 3; ++i) take_all(map, fits[i].seq, (*found)[i]);  // throws if not free
  CHECK(map.counts().free == 0);
  const CellRequest too_many[] = {{a, 0xffffffffU, {}}, {b, 0xffffffffU, {}}};
  CHECK(!find_cells(CellMap(2), too_many).has_value());
  CHECK_THROWS(InvalidArgument, find_one(map, a, 0, 128));
}

TEST(an_owner_keeps_its_lease_while_others_ask_in_the_same_search) {
  CellMap map(1);
  take_all(map, b, find_one(map, b, 60));
  const CellRequest requests[] = {{a, 2, {}}, {b, 2, 59}};
  const auto found = find_cells(map, requests);
  CHECK(found && (*found)[1] == (std::vector<CellSpan>{{60, 2}}));
  CHECK(found && (*found)[0] == (std::vector<CellSpan>{{62, 2}}));
}

TEST(a_lease_follows_its_sequence_and_ends_with_its_block) {
  CellMap map(3);
  map.take(a, {0, 10});
  map.take(a, {64, 10});  // the lease moves; block 0 is a hole now
  CHECK(find_one(map, b, 64 + 54) == (std::vector<CellSpan>{{128, 64}, {10, 54}}));
  map.take(a, {74, 54});  // block 1 is full
  map.check_integrity();
  map.drop_lease(a);
  map.drop_lease(b);
  map.check_integrity();
}

TEST(tail_removal_lets_the_sequence_continue_in_place) {
  CellMap map(3);
  take_all(map, a, find_one(map, a, 100));
  map.drop_holder({30, 70});
  map.drop_lease(a);
  CHECK(find_one(map, a, 20, 29) == (std::vector<CellSpan>{{30, 20}}));
  map.check_integrity();
}

// C14: sequences side by side, every second one removed, then one long request.
TEST(any_request_fits_when_enough_cells_are_free) {
  CellMap map(8);
  std::vector<std::vector<CellSpan>> held;
  for (std::uint64_t seq = 1; map.counts().free >= 13; ++seq) {
    held.push_back(find_one(map, SeqId{seq}, 13));
    take_all(map, SeqId{seq}, held.back());
  }
  for (std::size_t i = 0; i < held.size(); i += 2) {
    for (const CellSpan span : held[i]) map.drop_holder(span);
    map.drop_lease(SeqId{i + 1});
  }
  map.check_integrity();
  const std::uint32_t free = map.counts().free;
  const auto spans = find_one(map, SeqId{99}, free);
  CHECK(total(spans) == free);
  take_all(map, SeqId{99}, spans);
  CHECK(map.counts().free == 0);
  map.check_integrity();
}

namespace {

// Every cell with its holders, one by one.
struct Model {
  struct Cell {
    std::uint32_t holders = 0;
    bool in_tree = false;
  };
  std::vector<Cell> cells;

  bool all(CellSpan span, auto condition) const {
    return std::all_of(cells.begin() + span.begin, cells.begin() + span.begin + span.length, condition);
  }
  void each(CellSpan span, auto change) {
    std::for_each(cells.begin() + span.begin, cells.begin() + span.begin + span.length, change);
  }
};

bool is_held(const Model::Cell& cell) { return cell.holders > 0 || cell.in_tree; }

void compare(const CellMap& map, const Model& model) {
  CellCounts counts{map.counts().capacity, 0, 0, 0};
  std::uint32_t open = 0, largest = 0;
  for (CellIndex i = 0; i < model.cells.size(); ++i) {
    const Model::Cell& cell = model.cells[i];
    CHECK(map.holders(i) == cell.holders);
    CHECK(map.in_tree(i) == cell.in_tree);
    ++(cell.holders > 0 ? counts.active : cell.in_tree ? counts.idle : counts.free);
    open = is_held(cell) ? 0 : open + 1;
    largest = std::max(largest, open);
  }
  CHECK(counts.active == map.counts().active && counts.idle == map.counts().idle);
  CHECK(counts.free == map.counts().free);
  CHECK(map.largest_free_span() == largest);
}

void find_and_take(CellMap& map, Model& model, std::mt19937& random) {
  std::vector<CellRequest> requests;
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0, n = 1 + random() % 4; i < n; ++i) {
    std::optional<CellIndex> after;
    if (random() % 2 == 0) after = random() % map.counts().capacity;
    requests.push_back({SeqId{1 + i * 7 + random() % 7}, static_cast<std::uint32_t>(random() % 90), after});
    sum += requests.back().cells;
  }
  const auto found = find_cells(map, requests);
  CHECK(found.has_value() == (sum <= map.counts().free));
  for (std::size_t i = 0; found && i < requests.size(); ++i) {
    CHECK(total((*found)[i]) == requests[i].cells);
    for (const CellSpan span : (*found)[i]) {
      map.take(requests[i].seq, span);
      model.each(span, [](auto& cell) { cell.holders = 1; });
    }
  }
}

// Tries one change on a random span; it must be done, or refused, as the model says.
void change(CellMap& map, Model& model, std::mt19937& random) {
  const std::uint32_t begin = random() % map.counts().capacity;
  const CellSpan span{begin, std::min(map.counts().capacity - begin, 1 + std::uint32_t(random() % 100))};
  const auto attempt = [&](auto allowed, auto call, auto apply) {
    if (!model.all(span, allowed)) {
      CHECK_THROWS(IntegrityError, call());
      return;
    }
    call();
    model.each(span, apply);
  };
  switch (random() % 4) {
    case 0:
      return attempt(is_held, [&] { map.add_holder(span); }, [](auto& cell) { ++cell.holders; });
    case 1:
      return attempt([](const auto& cell) { return cell.holders > 0; }, [&] { map.drop_holder(span); },
                     [](auto& cell) { --cell.holders; });
    case 2:
      return attempt([](const auto& cell) { return cell.holders > 0 && !cell.in_tree; },
                     [&] { map.set_in_tree(span); }, [](auto& cell) { cell.in_tree = true; });
    default:
      return attempt([](const auto& cell) { return cell.in_tree; }, [&] { map.clear_in_tree(span); },
                     [](auto& cell) { cell.in_tree = false; });
  }
}

// The same with any cells of one block.
void change_bits(CellMap& map, Model& model, std::mt19937& random) {
  const BlockIndex block = random() % map.block_count();
  std::uint64_t bits = 0;
  for (std::uint32_t i = 0; i < kBlockCells; ++i) {
    const bool has_holder = model.cells[block * kBlockCells + i].holders > 0;
    if (random() % 3 == 0 && (has_holder || random() % 500 == 0)) bits |= std::uint64_t{1} << i;
  }
  const bool drops = random() % 2 == 0;
  bool allowed = true;
  for (std::uint32_t i = 0; i < kBlockCells; ++i) {
    const Model::Cell& cell = model.cells[block * kBlockCells + i];
    if ((bits >> i & 1) != 0) allowed = allowed && (drops ? cell.holders > 0 : is_held(cell));
  }
  const auto call = [&] { drops ? map.drop_holder(block, bits) : map.add_holder(block, bits); };
  if (!allowed) {
    CHECK_THROWS(IntegrityError, call());
    return;
  }
  call();
  for (std::uint32_t i = 0; i < kBlockCells; ++i)
    if ((bits >> i & 1) != 0)
      drops ? --model.cells[block * kBlockCells + i].holders : ++model.cells[block * kBlockCells + i].holders;
}

// Drops every holder of a random stretch, so that the pool does not stay full.
void release(CellMap& map, Model& model, std::mt19937& random) {
  const CellIndex begin = random() % map.counts().capacity;
  const CellIndex end = std::min<CellIndex>(map.counts().capacity, begin + random() % 200);
  for (CellIndex i = begin; i < end; ++i) {
    while (model.cells[i].holders > 0) {
      map.drop_holder({i, 1});
      --model.cells[i].holders;
    }
    if (model.cells[i].in_tree) map.clear_in_tree({i, 1});
    model.cells[i].in_tree = false;
  }
}

}  // namespace

TEST(random_operations_equal_a_model) {
  std::mt19937 random(11);
  for (const std::uint32_t blocks : {1U, 5U, 70U}) {
    CellMap map(blocks);
    Model model{std::vector<Model::Cell>(map.counts().capacity)};
    for (int step = 0; step < 2500; ++step) {
      const auto dice = random() % 20;
      if (dice < 6) find_and_take(map, model, random);
      if (dice >= 6 && dice < 13) change(map, model, random);
      if (dice >= 13 && dice < 16) change_bits(map, model, random);
      if (dice == 16) release(map, model, random);
      if (dice == 17) map.drop_lease(SeqId{1 + random() % 28});
      map.check_integrity();
      if (step % 50 == 0) compare(map, model);
    }
  }
}
