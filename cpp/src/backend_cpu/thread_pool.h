// Floor 2. Persistent worker threads that share out the tasks of one loop at a time.
//
// A loop is published as a ticket (epoch, next task); whoever wins the compare-exchange
// on it owns that task. The caller works too and returns when every task is finished; it
// never waits for a worker that has not taken one, so that a sleeping or descheduled
// worker costs nothing. Between loops workers spin briefly (a model's operations follow
// each other within microseconds), then sleep.
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

  std::uint32_t threads() const { return static_cast<std::uint32_t>(workers_.size()) + 1; }

  std::uint32_t sleeping() const { return sleepers_.load(); }  // workers asleep, for tests

  // body(task, worker) for every task in [0, tasks), worker in [0, threads()), in any
  // order and at the same time. `body` must not throw.
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

  void run_erased(std::uint32_t tasks, Invoke invoke, void* body);
  void work(std::uint32_t worker);   // until the current loop has no task left
  void serve(std::uint32_t worker);  // a worker's life
  std::uint32_t wait_for_epoch_after(std::uint32_t seen);
  void publish(std::uint32_t epoch);
  void stop();

  // Low half: next task, or kClosed between loops; high half: epoch. The job's fields
  // are written only while the ticket is closed, so that a successful compare-exchange
  // proves that the fields read before it belong to the ticket.
  alignas(64) std::atomic<std::uint64_t> ticket_;
  std::atomic<Invoke> invoke_{nullptr};
  std::atomic<void*> body_{nullptr};
  std::atomic<std::uint32_t> tasks_{0};
  alignas(64) std::atomic<std::uint32_t> finished_{0};
  alignas(64) std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Cores this process may use: its affinity mask and, where set, the container's quota.
std::uint32_t usable_cores();

}  // namespace pykv::cpu
