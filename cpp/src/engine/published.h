// Floor 5. One writer hands immutable values to many readers without locks.
//
// A few slots, one of them current. A reader announces itself at the slot it saw, looks
// again, and only then copies the pointer; the writer reuses a slot only when it is not
// current and nobody is announced there. A reader repeats only if the writer published in
// between. std::atomic<std::shared_ptr> would do, but libstdc++ 12 implements it with a spin
// lock that ThreadSanitizer cannot follow.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>

namespace pykv::engine {

template <class T>
class Published {
 public:
  explicit Published(std::shared_ptr<const T> first) { slots_[0].value = std::move(first); }

  std::shared_ptr<const T> load() const {
    for (;;) {
      const std::size_t seen = current_.load();
      const Slot& slot = slots_[seen];
      slot.readers.fetch_add(1);
      std::shared_ptr<const T> value;
      if (current_.load() == seen) value = slot.value;
      slot.readers.fetch_sub(1);
      if (value) return value;
    }
  }

  void store(std::shared_ptr<const T> value) {  // one thread at a time
    std::size_t next = current_.load();
    do {
      next = (next + 1) % slots_.size();
      if (next == current_.load()) std::this_thread::yield();
    } while (next == current_.load() || slots_[next].readers.load() != 0);
    slots_[next].value = std::move(value);
    current_.store(next);
  }

 private:
  struct Slot {
    mutable std::atomic<unsigned> readers{0};
    std::shared_ptr<const T> value;
  };
  std::array<Slot, 8> slots_;
  std::atomic<std::size_t> current_{0};
};

}  // namespace pykv::engine
