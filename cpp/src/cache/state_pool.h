// Floor 3, private. Slots of recurrent states (state_layout.h): who has one, and its memory.
//
// A slot is written once, by the step that took it; whoever has a StateRef to it may read it.
// Sequences, forks and resume points share slots by counting: all O(1), no copy. Memory is
// committed when a slot is taken and stays with the slot until release_excess().
//
// Invariants (check_integrity): a slot with references is committed, free ones have none.
// Threads: externally locked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pykv/backend.h"
#include "pykv/state_layout.h"

namespace pykv {

class StateRef;

class StatePool {
 public:
  // At least one slot if the layout has recurrent layers. Throws OutOfMemory.
  StatePool(Backend& machine, StateLayout places, std::uint32_t slots);
  ~StatePool();
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  bool is_used() const { return layout.slot_bytes() != 0; }  // whether there are recurrent layers
  // The `count` free slots that are taken next, those with memory first; false: there are fewer.
  bool find(std::uint32_t count, std::vector<StateSlot>& found) const;
  // Takes free slots, of which each has one reference then. Throws OutOfMemory, then none is.
  std::vector<StateRef> take(std::span<const StateSlot> slots);

  // By number, for who keeps numbers: one reference more, one less.
  void share(StateSlot slot);
  void drop(StateSlot slot) noexcept;
  std::uint32_t references(StateSlot slot) const { return references_.at(slot.value); }

  struct Counts {
    std::uint32_t slots = 0, used = 0, committed = 0;
    std::uint32_t free() const { return slots - used; }
  };
  const Counts& counts() const { return counts_; }
  std::uint64_t committed_bytes() const { return counts_.committed * layout.slot_bytes(); }

  // Gives the memory of free slots back beyond an eighth of the committed ones; false: there was none.
  bool release_excess();
  void check_integrity() const;  // throws IntegrityError

  const StateLayout layout;
  Backend& backend;
  const StatesId id;

 private:
  std::vector<std::uint32_t> references_;  // per slot
  std::vector<std::uint8_t> committed_;    // per slot
  Counts counts_;
};

// One reference to a slot, or none.
class StateRef {
 public:
  StateRef() = default;
  StateRef(const StateRef& other) : StateRef() {
    if (other.pool_ != nullptr) other.pool_->share(other.slot_);
    pool_ = other.pool_;
    slot_ = other.slot_;
  }
  StateRef(StateRef&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), slot_(other.slot_) {}
  StateRef& operator=(StateRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~StateRef() {
    if (pool_ != nullptr) pool_->drop(slot_);
  }

  // A further reference to a slot that has some.
  static StateRef share(StatePool& pool, StateSlot slot) {
    pool.share(slot);
    return {pool, slot};
  }

  explicit operator bool() const { return pool_ != nullptr; }
  std::optional<StateSlot> slot() const { return pool_ == nullptr ? std::nullopt : std::optional(slot_); }
  // Hands the reference to who keeps the number.
  StateSlot release() noexcept {
    pool_ = nullptr;
    return slot_;
  }

 private:
  friend class StatePool;
  StateRef(StatePool& pool, StateSlot slot) : pool_(&pool), slot_(slot) {}

  StatePool* pool_ = nullptr;
  StateSlot slot_;
};

}  // namespace pykv
