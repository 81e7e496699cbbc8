#include "engine/inbox.h"

#include <chrono>
#include <string>
#include <utility>

#include "pykv/errors.h"

namespace pykv::engine {

RequestId Inbox::submit(SessionPtr session) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw Busy("[Engine.submit] the engine is stopped; call start() first");
  const std::size_t queued = waiting_ + commands_.submitted.size();
  if (queued >= queue_length_)
    throw Busy("[Engine.submit] " + std::to_string(queued) + " requests are waiting and queue_length is " +
               std::to_string(queue_length_) + "; try again later");
  const RequestId id = session->id = ++last_id_;
  for (std::uint32_t i = 1; i < session->request.choices; ++i) session->choices.push_back(++last_id_);
  commands_.submitted.push_back(std::move(session));
  wake_.notify_one();
  return id;
}

void Inbox::cancel(RequestId request) {
  const std::lock_guard lock(mutex_);
  commands_.cancelled.push_back(request);
  wake_.notify_one();
}

void Inbox::set_limits(const EngineLimits& limits) {
  const std::lock_guard lock(mutex_);
  queue_length_ = limits.queue_length;
  commands_.limits = limits;
  wake_.notify_one();
}

void Inbox::set_watermarks(const Watermarks& marks) {
  const std::lock_guard lock(mutex_);
  commands_.watermarks = marks;
  wake_.notify_one();
}

Commands Inbox::take() {
  const std::lock_guard lock(mutex_);
  waiting_ += commands_.submitted.size();
  return std::exchange(commands_, {});
}

void Inbox::set_waiting(std::size_t waiting) {
  const std::lock_guard lock(mutex_);
  waiting_ = waiting;
}

bool Inbox::wait(double seconds) {
  std::unique_lock lock(mutex_);
  const bool woken = wake_.wait_for(lock, std::chrono::duration<double>(seconds),
                                    [this] { return poked_ || closed_ || !commands_.empty(); });
  poked_ = false;
  return woken;
}

void Inbox::poke() {
  const std::lock_guard lock(mutex_);
  poked_ = true;
  wake_.notify_one();
}

void Inbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  wake_.notify_one();
}

void Inbox::open() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
}

bool Inbox::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace pykv::engine
