// Floor 5. Commands on their way in, from any thread, and what the loop sleeps on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/session.h"
#include "pykv/engine.h"

namespace pykv::engine {

struct Commands {
  std::vector<SessionPtr> submitted;
  std::vector<RequestId> cancelled;
  std::optional<EngineLimits> limits;
  std::optional<Watermarks> watermarks;
  bool empty() const { return submitted.empty() && cancelled.empty() && !limits && !watermarks; }
};

class Inbox {
 public:
  explicit Inbox(const EngineLimits& limits) : queue_length_(limits.queue_length) {}

  // Numbers the session and queues it. Throws Busy if the queue is full or closed.
  RequestId submit(SessionPtr session);
  void cancel(RequestId request);
  void set_limits(const EngineLimits& limits);
  void set_watermarks(const Watermarks& marks);

  Commands take();
  // The loop says how many of its sessions wait; they count against the queue's length.
  void set_waiting(std::size_t waiting);

  // Sleeps until there is a command, a poke or a close: true; false after `seconds`.
  bool wait(double seconds);
  void poke();   // wakes wait() once
  void close();  // wakes wait(); submit() throws Busy until open()
  void open();
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Commands commands_;
  RequestId last_id_ = 0;
  std::uint32_t queue_length_;
  std::size_t waiting_ = 0;
  bool poked_ = false;
  bool closed_ = false;
};

}  // namespace pykv::engine
