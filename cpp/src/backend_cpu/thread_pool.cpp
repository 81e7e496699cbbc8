#include "backend_cpu/thread_pool.h"

#include <string>
#include <system_error>

#include "pykv/errors.h"

namespace pykv::cpu {
namespace {

constexpr std::uint32_t kClosed = 0xffffffff;
constexpr int kSpins = 2000;  // 30 to 100 µs, longer than the gap between two operations

constexpr std::uint64_t ticket(std::uint32_t epoch, std::uint32_t next) {
  return std::uint64_t{epoch} << 32 | next;
}
constexpr std::uint32_t epoch_of(std::uint64_t t) { return static_cast<std::uint32_t>(t >> 32); }
constexpr std::uint32_t next_of(std::uint64_t t) { return static_cast<std::uint32_t>(t); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // what "yield" is meant for, on processors that ignore that
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::uint32_t threads) : ticket_(ticket(0, kClosed)) {
  try {
    workers_.reserve(threads - 1);
    for (std::uint32_t worker = 1; worker < threads; ++worker)
      workers_.emplace_back([this, worker] { serve(worker); });
  } catch (const std::system_error& error) {
    const std::size_t started = workers_.size();
    stop();
    throw OutOfMemory("[Backend.set_threads] the system gave " + std::to_string(started + 1) + " of " +
                      std::to_string(threads) + " threads (" + error.what() + "); ask for fewer");
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true);
  publish(epoch_of(ticket_.load()) + 1);
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

// The pair (ticket stored, then sleepers read) here and (sleepers raised, then ticket
// read) in wait_for_epoch_after: one side always sees the other.
void ThreadPool::publish(std::uint32_t epoch) {
  ticket_.store(ticket(epoch, stopping_.load() ? kClosed : 0));
  if (sleepers_.load() == 0) return;
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

void ThreadPool::run_erased(std::uint32_t tasks, Invoke invoke, void* body) {
  if (workers_.empty() || tasks <= 1) {
    for (std::uint32_t task = 0; task < tasks; ++task) invoke(body, task, 0);
    return;
  }
  const std::uint32_t epoch = epoch_of(ticket_.load(std::memory_order_relaxed)) + 1;
  invoke_.store(invoke, std::memory_order_release);
  body_.store(body, std::memory_order_release);
  tasks_.store(tasks, std::memory_order_release);
  finished_.store(0, std::memory_order_relaxed);
  publish(epoch);
  work(0);
  for (int spins = 0; finished_.load(std::memory_order_acquire) != tasks; ++spins) {
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
  ticket_.store(ticket(epoch, kClosed));
}

void ThreadPool::work(std::uint32_t worker) {
  std::uint64_t current = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const Invoke invoke = invoke_.load(std::memory_order_acquire);
    void* const body = body_.load(std::memory_order_acquire);
    if (next_of(current) >= tasks_.load(std::memory_order_acquire)) return;
    if (!ticket_.compare_exchange_weak(current, current + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
      continue;
    invoke(body, next_of(current), worker);
    finished_.fetch_add(1, std::memory_order_release);
    current = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::serve(std::uint32_t worker) {
  std::uint32_t seen = 0;
  while (!stopping_.load()) {
    seen = wait_for_epoch_after(seen);
    work(worker);
  }
}

std::uint32_t ThreadPool::wait_for_epoch_after(std::uint32_t seen) {
  for (int spins = 0; spins < kSpins; ++spins) {
    const std::uint32_t epoch = epoch_of(ticket_.load(std::memory_order_acquire));
    if (epoch != seen) return epoch;
    pause();
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  std::uint32_t epoch = seen;
  wake_.wait(lock, [&] { return (epoch = epoch_of(ticket_.load())) != seen; });
  sleepers_.fetch_sub(1);
  return epoch;
}

}  // namespace pykv::cpu
