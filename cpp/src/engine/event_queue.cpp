#include "engine/event_queue.h"

#include <iterator>
#include <utility>

namespace pykv::engine {

void EventQueue::append(std::vector<EngineEvent>& events) {
  if (events.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                   std::make_move_iterator(events.end()));
  }
  events.clear();
  notifier_.signal();
}

std::vector<EngineEvent> EventQueue::drain() {
  notifier_.clear();  // before taking: a signal in between costs an empty drain, never an event
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

bool EventQueue::full() const {
  const std::lock_guard lock(mutex_);
  return events_.size() >= capacity_;
}

}  // namespace pykv::engine
