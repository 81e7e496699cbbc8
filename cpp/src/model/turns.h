// Floor 4. One thread at a time, in the order of arrival: of two step loops on one model neither
// keeps the other waiting for longer than one of its steps. (A std::mutex would let the one that
// has just left in again.)
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace pykv {

class Turns {
 public:
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns) {
      std::unique_lock lock(turns_.mutex_);
      const std::uint64_t own = turns_.last_++;
      turns_.changed_.wait(lock, [&] { return turns_.current_ == own; });
    }
    ~Turn() {
      const std::lock_guard lock(turns_.mutex_);
      ++turns_.current_;
      turns_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t last_ = 0;     // turns given out
  std::uint64_t current_ = 0;  // whose it is
};

}  // namespace pykv
