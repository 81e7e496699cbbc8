// Slots of recurrent states: layout, references, memory.
#include <vector>

#include "cache/state_pool.h"
#include "check.h"
#include "pykv/errors.h"

using namespace pykv;

namespace {

struct Fixture {
  Backend backend{BackendConfig{1, ""}};
  StatePool pool{backend, StateLayout({{30, 100}, {0, 0}, {0, 1000}}), 8};

  std::vector<StateRef> take(std::uint32_t count) {
    std::vector<StateSlot> slots;
    CHECK(pool.find(count, slots));
    return pool.take(slots);
  }
};

}  // namespace

TEST(a_slot_has_the_parts_of_all_layers_one_after_the_other) {
  const StateLayout layout({{30, 100}, {0, 0}, {0, 1000}});
  CHECK(layout.conv_offset(0) == 0);
  CHECK(layout.scan_offset(0) == 32);
  CHECK(layout.conv_offset(1) == 144);
  CHECK(layout.scan_offset(2) == 144);
  CHECK(layout.slot_bytes() == 8192);
  CHECK(StateLayout(RecurrentTable(3)).slot_bytes() == 0);
  CHECK(StateLayout().slot_bytes() == 0);
  const RecurrentTable huge{{0xffffffffU, 0xffffffffU}};
  CHECK_THROWS(InvalidArgument, StateLayout(huge));
}

TEST(slots_are_shared_by_counting) {
  Fixture f;
  std::vector<StateRef> taken = f.take(2);
  const StateSlot first = *taken[0].slot();
  CHECK(f.pool.counts().used == 2);
  CHECK(f.pool.counts().committed == 2);
  {
    const StateRef fork = taken[0];
    CHECK(f.pool.references(first) == 2);
  }
  StateRef point = StateRef::share(f.pool, first);
  const StateSlot kept = point.release();
  taken.clear();
  CHECK(f.pool.references(kept) == 1);
  CHECK(f.pool.counts().used == 1);
  f.pool.check_integrity();
  f.pool.drop(kept);
  CHECK(f.pool.counts().used == 0);
  CHECK_THROWS(IntegrityError, f.pool.share(kept));
  f.pool.check_integrity();
}

TEST(a_reference_moves_and_is_assigned) {
  Fixture f;
  std::vector<StateRef> taken = f.take(2);
  StateRef state;
  CHECK(!state && !state.slot());
  state = taken[0];
  state = std::move(taken[1]);
  CHECK(state);
  CHECK(f.pool.references(*taken[0].slot()) == 1);
  CHECK(f.pool.references(*state.slot()) == 1);
  state = {};
  CHECK(f.pool.counts().used == 1);
  f.pool.check_integrity();
}

TEST(slots_with_memory_are_taken_first_and_it_goes_back) {
  Fixture f;
  std::vector<StateRef> taken = f.take(8);
  std::vector<StateSlot> slots;
  CHECK(!f.pool.find(1, slots));
  taken.erase(taken.begin(), taken.begin() + 6);
  f.pool.release_excess();
  CHECK(f.pool.counts().committed == 3);  // an eighth of 8 stays
  CHECK(f.pool.find(1, slots));
  CHECK(slots.size() == 1 && slots[0].value == 0);
  CHECK(f.pool.find(3, slots));
  CHECK(slots.size() == 3);
  f.pool.check_integrity();
  CHECK(f.pool.committed_bytes() == 3 * 8192);
}

TEST(without_recurrent_layers_there_are_no_slots) {
  Backend backend{BackendConfig{1, ""}};
  StatePool pool(backend, StateLayout(), 0);
  std::vector<StateSlot> slots;
  CHECK(!pool.is_used());
  CHECK(pool.find(0, slots));
  CHECK(!pool.find(1, slots));
  pool.check_integrity();
}
