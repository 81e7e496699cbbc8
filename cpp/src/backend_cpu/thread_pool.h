// Floor 2. Persistent worker threads that share out the tasks of one loop at a time.
//
// Each thread has a share of a loop's tasks in a cache line of its own: taking one costs no
// traffic between cores. Who has none left takes from the others' shares. The caller works too
// and returns when every task is finished; it never waits for a worker that has not taken one,
// so that a sleeping or descheduled worker costs nothing. Between loops workers spin briefly (a
// model's operations follow each other within microseconds), then sleep.
//
// Threads: one run() at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace pykv::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(std::uint32_t threads);  // threads - 1 workers; throws OutOfMemory
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::uint32_t threads() const { return static_cast<std::uint32_t>(shares_.size()); }

  std::uint32_t sleeping() const { return sleepers_.load(); }  // workers asleep, for tests

  // body(task, worker) for every task in [0, tasks), worker in [0, threads()), at the same time
  // and in any order; of equal threads each takes task t, t + threads(), … `body` must not throw.
  template <class Body>
  void run(std::uint32_t tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        tasks,
        [](void* erased, std::uint32_t task, std::uint32_t worker) {
          (*static_cast<Plain*>(erased))(task, worker);
        },
        &body);
  }

 private:
  using Invoke = void (*)(void* body, std::uint32_t task, std::uint32_t worker);

  // What one thread is to do of a loop. The ticket has the loop's epoch, the first turn not taken
  // and the one behind the last; its owner takes the first of them, others the last. The rest is
  // written only while none is left, so that a successful compare-exchange proves that what was
  // read before it belongs to the ticket.
  struct alignas(128) Share {  // what processors fetch at once
    std::atomic<std::uint64_t> ticket{0};
    std::atomic<Invoke> invoke{nullptr};
    std::atomic<void*> body{nullptr};
  };

  void run_erased(std::uint32_t tasks, Invoke invoke, void* body);
  void run_groups(std::uint32_t tasks, Invoke invoke, void* body);
  void publish(std::uint32_t tasks, Invoke invoke, void* body);
  std::uint32_t work(std::uint32_t worker);  // until no share has a task left; how many it did
  std::uint32_t take(std::uint32_t from, std::uint32_t worker);
  void serve(std::uint32_t worker);  // a worker's life
  std::uint32_t wait_for_epoch_after(const Share& share, std::uint32_t seen);
  void stop();

  std::vector<Share> shares_;   // the caller's, then the workers'
  std::uint32_t epoch_ = 0;     // of the last loop
  std::uint32_t expected_ = 0;  // tasks that workers have been left with, of all loops
  alignas(128) std::atomic<std::uint32_t> finished_{0};  // of those
  alignas(128) std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Cores this process may use: its affinity mask and, where set, the container's quota.
std::uint32_t usable_cores();

}  // namespace pykv::cpu
