// Slots of the states of recurrent layers.
#include <cstring>
#include <limits>

#include "backend_cpu/impl.h"

namespace pykv {

using cpu::refuse;
using cpu::States;

const States& cpu::State::states_of(const char* method, StatesId id) const {
  const auto found = states.find(id.value);
  if (found == states.end()) refuse(method, "no states have the handle " + std::to_string(id.value));
  return found->second;
}

void cpu::check_slot(const char* method, const States& states, StateSlot slot) {
  if (slot.value < states.committed.size() && states.committed[slot.value]) return;
  refuse(method, "slot " + std::to_string(slot.value) + " of " + std::to_string(states.committed.size()) +
                     " is not committed");
}

void cpu::check_part(const char* method, const States& states, std::uint32_t offset, std::uint64_t elements) {
  const std::uint64_t all = states.slot_bytes / sizeof(float);
  if (offset + elements <= all) return;
  refuse(method, "elements " + std::to_string(offset) + " to " + std::to_string(offset + elements) +
                     " of a slot of " + std::to_string(all));
}

StatesId Backend::create_states(std::uint64_t slot_bytes, std::uint32_t slots) {
  const auto call = impl_->enter();
  if (slot_bytes == 0 || slot_bytes % 4096 != 0 || slots == 0)
    refuse("create_states", std::to_string(slots) + " slots of " + std::to_string(slot_bytes) +
                                " bytes; needed are at least one slot and a multiple of 4096 bytes");
  States made{slot_bytes, {}, std::vector<bool>(slots)};
  if (slots <= std::numeric_limits<std::size_t>::max() / 2 / slot_bytes)
    made.memory = cpu::MappedMemory::reserve(slots * slot_bytes);
  if (made.memory.data() == nullptr)
    throw OutOfMemory("[Backend.create_states] no address space for " + std::to_string(slots) + " slots of " +
                      std::to_string(slot_bytes) + " bytes; ask for fewer");
  const StatesId id{impl_->next_id("create_states")};
  impl_->states.emplace(id.value, std::move(made));
  return id;
}

void Backend::destroy_states(StatesId states) {
  if (impl_->birthplace.left()) return;  // may be called by a destructor
  const auto call = impl_->enter();
  if (impl_->states.erase(states.value) == 0)
    refuse("destroy_states", "no states have the handle " + std::to_string(states.value));
}

bool Backend::commit_slot(StatesId id, StateSlot slot) {
  const auto call = impl_->enter();
  static_cast<void>(impl_->states_of("commit_slot", id));
  States& states = impl_->states.at(id.value);
  if (slot.value >= states.committed.size() || states.committed[slot.value])
    refuse("commit_slot", "slot " + std::to_string(slot.value) + " of " +
                              std::to_string(states.committed.size()) +
                              " does not exist or is committed already");
  if (!states.memory.commit(slot.value * states.slot_bytes, states.slot_bytes)) {
    states.memory.release(slot.value * states.slot_bytes, states.slot_bytes);
    return false;
  }
  states.committed[slot.value] = true;
  return true;
}

void Backend::release_slot(StatesId id, StateSlot slot) {
  const auto call = impl_->enter();
  cpu::check_slot("release_slot", impl_->states_of("release_slot", id), slot);
  States& states = impl_->states.at(id.value);
  states.memory.release(slot.value * states.slot_bytes, states.slot_bytes);
  states.committed[slot.value] = false;
}

void Backend::read_state(StatesId id, StateSlot slot, std::uint32_t offset, std::span<float> to) const {
  const auto call = impl_->enter();
  const States& states = impl_->states_of("read_state", id);
  cpu::check_slot("read_state", states, slot);
  cpu::check_part("read_state", states, offset, to.size());
  if (!to.empty()) std::memcpy(to.data(), states.slot(slot) + offset, to.size_bytes());
}

void Backend::write_state(StatesId id, StateSlot slot, std::uint32_t offset, std::span<const float> from) {
  const auto call = impl_->enter();
  const States& states = impl_->states_of("write_state", id);
  cpu::check_slot("write_state", states, slot);
  cpu::check_part("write_state", states, offset, from.size());
  if (!from.empty()) std::memcpy(states.slot(slot) + offset, from.data(), from.size_bytes());
}

}  // namespace pykv
