// Floor 5. Events on their way out. Bounded by a promise of the producer: while full(),
// the step loop computes nothing, so the queue holds at most its capacity, the events of
// one step, and one end for each open request (cancelling works while it is full).
// Nothing is ever dropped. Any thread may drain; the loop appends.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "engine/notifier.h"
#include "pykv/engine.h"

namespace pykv::engine {

class EventQueue {
 public:
  explicit EventQueue(std::size_t capacity) : capacity_(capacity) {}

  void append(std::vector<EngineEvent>& events);  // takes all, one wake-up; leaves it empty
  std::vector<EngineEvent> drain();               // oldest first
  bool full() const;
  int fd() const { return notifier_.fd(); }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<EngineEvent> events_;
  Notifier notifier_;
};

}  // namespace pykv::engine
