#include "cache/state_pool.h"

#include <algorithm>
#include <string>

#include "pykv/errors.h"

namespace pykv {

StatePool::StatePool(Backend& machine, StateLayout places, std::uint32_t slots)
    : layout(std::move(places)),
      backend(machine),
      id(layout.slot_bytes() == 0 ? StatesId{} : machine.create_states(layout.slot_bytes(), slots)) {
  if (!is_used()) return;
  counts_.slots = slots;
  references_.resize(slots);
  committed_.resize(slots);
}

StatePool::~StatePool() {
  if (is_used()) backend.destroy_states(id);
}

bool StatePool::find(std::uint32_t count, std::vector<StateSlot>& found) const {
  found.clear();
  if (count > counts_.free()) return false;
  for (const std::uint8_t with_memory : {std::uint8_t{1}, std::uint8_t{0}})
    for (std::uint32_t slot = 0; slot < counts_.slots && found.size() < count; ++slot)
      if (references_[slot] == 0 && committed_[slot] == with_memory) found.push_back(StateSlot{slot});
  return true;
}

std::vector<StateRef> StatePool::take(std::span<const StateSlot> slots) {
  std::vector<StateRef> taken;
  taken.reserve(slots.size());
  for (const StateSlot slot : slots) {
    if (references_.at(slot.value) != 0)
      throw IntegrityError("[StatePool.take] slot " + std::to_string(slot.value) + " is not free");
    if (committed_[slot.value] == 0) {
      if (!backend.commit_slot(id, slot))
        throw OutOfMemory("[Cache.commit] the system has no memory for a recurrent state of " +
                          std::to_string(layout.slot_bytes()) + " bytes; end sequences or use fewer");
      committed_[slot.value] = 1;
      ++counts_.committed;
    }
    references_[slot.value] = 1;
    ++counts_.used;
    taken.push_back(StateRef(*this, slot));
  }
  return taken;
}

void StatePool::share(StateSlot slot) {
  if (references_.at(slot.value) == 0)
    throw IntegrityError("[StatePool.share] slot " + std::to_string(slot.value) + " is free");
  ++references_[slot.value];
}

void StatePool::drop(StateSlot slot) noexcept {
  if (--references_[slot.value] == 0) --counts_.used;
}

bool StatePool::release_excess() {
  std::uint32_t spare = counts_.committed - counts_.used;
  bool any = false;
  const std::uint32_t kept = counts_.committed / 8;
  for (std::uint32_t slot = counts_.slots; slot-- > 0 && spare > kept;) {
    if (references_[slot] != 0 || committed_[slot] == 0) continue;
    backend.release_slot(id, StateSlot{slot});
    committed_[slot] = 0;
    --counts_.committed;
    --spare;
    any = true;
  }
  return any;
}

void StatePool::check_integrity() const {
  std::uint32_t used = 0, committed = 0;
  for (std::uint32_t slot = 0; slot < counts_.slots; ++slot) {
    used += references_[slot] != 0 ? 1U : 0U;
    committed += committed_[slot];
    if (references_[slot] != 0 && committed_[slot] == 0)
      throw IntegrityError("[StatePool] slot " + std::to_string(slot) + " is used and has no memory");
  }
  if (used != counts_.used || committed != counts_.committed)
    throw IntegrityError("[StatePool] counts differ: " + std::to_string(used) + " slots are used and " +
                         std::to_string(committed) + " committed, noted are " + std::to_string(counts_.used) +
                         " and " + std::to_string(counts_.committed));
}

}  // namespace pykv
