#include "backend_cpu/thread_pool.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "pykv/errors.h"

namespace pykv::cpu {
namespace {

constexpr int kSpins = 2000;  // 30 to 100 µs, longer than the gap between two operations
constexpr std::uint32_t kMostTurns = 0xffff;

struct Ticket {
  std::uint32_t epoch, next, end;

  Ticket(std::uint32_t of_epoch, std::uint32_t first, std::uint32_t behind)
      : epoch(of_epoch), next(first), end(behind) {}
  explicit Ticket(std::uint64_t packed)
      : epoch(static_cast<std::uint32_t>(packed >> 32)),
        next(static_cast<std::uint32_t>(packed >> 16) & kMostTurns),
        end(static_cast<std::uint32_t>(packed) & kMostTurns) {}
  std::uint64_t packed() const { return std::uint64_t{epoch} << 32 | next << 16 | end; }
};

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

ThreadPool::ThreadPool(std::uint32_t threads) : shares_(threads) {
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
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    ++epoch_;
    for (Share& share : shares_) share.ticket.store(Ticket(epoch_, 0, 0).packed());
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

// A worker that is just going to sleep may miss it: the others then do its share, and the next loop
// wakes it.
void ThreadPool::publish(std::uint32_t tasks, Invoke invoke, void* body) {
  ++epoch_;
  for (std::uint32_t thread = std::min(threads(), tasks); thread-- > 0;) {
    Share& share = shares_[thread];
    share.invoke.store(invoke, std::memory_order_relaxed);
    share.body.store(body, std::memory_order_relaxed);
    const std::uint32_t turns = (tasks - thread + threads() - 1) / threads();
    share.ticket.store(Ticket(epoch_, 0, turns).packed(), std::memory_order_release);
  }
  if (sleepers_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

void ThreadPool::run_erased(std::uint32_t tasks, Invoke invoke, void* body) {
  if (workers_.empty() || tasks <= 1) {
    for (std::uint32_t task = 0; task < tasks; ++task) invoke(body, task, 0);
    return;
  }
  if (tasks > kMostTurns) return run_groups(tasks, invoke, body);
  publish(tasks, invoke, body);
  expected_ += tasks - work(0);
  for (int spins = 0; finished_.load(std::memory_order_acquire) != expected_; ++spins) {
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// More tasks than a share can have: some of them for each turn.
void ThreadPool::run_groups(std::uint32_t tasks, Invoke invoke, void* body) {
  const std::uint32_t group = tasks / kMostTurns + 1;
  run((tasks - 1) / group + 1, [&](std::uint32_t index, std::uint32_t worker) {
    const std::uint32_t begin = index * group;
    for (std::uint32_t task = begin; task < std::min(tasks, begin + group); ++task)
      invoke(body, task, worker);
  });
}

std::uint32_t ThreadPool::work(std::uint32_t worker) {
  std::uint32_t done = take(worker, worker);
  for (std::uint32_t i = 1; i < threads(); ++i) done += take((worker + i) % threads(), worker);
  return done;
}

// What is left of the share of thread `from`.
std::uint32_t ThreadPool::take(std::uint32_t from, std::uint32_t worker) {
  Share& share = shares_[from];
  std::uint32_t done = 0;
  std::uint64_t current = share.ticket.load(std::memory_order_acquire);
  for (;;) {
    Ticket ticket(current);
    if (ticket.next == ticket.end) return done;
    const Invoke invoke = share.invoke.load(std::memory_order_relaxed);
    void* const body = share.body.load(std::memory_order_relaxed);
    const std::uint32_t turn = from == worker ? ticket.next++ : --ticket.end;
    if (!share.ticket.compare_exchange_weak(current, ticket.packed(), std::memory_order_acq_rel,
                                            std::memory_order_acquire))
      continue;
    invoke(body, turn * threads() + from, worker);
    ++done;
    current = share.ticket.load(std::memory_order_acquire);
  }
}

void ThreadPool::serve(std::uint32_t worker) {
  std::uint32_t seen = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    seen = wait_for_epoch_after(shares_[worker], seen);
    const std::uint32_t done = work(worker);
    if (done != 0) finished_.fetch_add(done, std::memory_order_release);
  }
}

std::uint32_t ThreadPool::wait_for_epoch_after(const Share& share, std::uint32_t seen) {
  const auto epoch = [&] { return Ticket(share.ticket.load(std::memory_order_acquire)).epoch; };
  for (int spins = 0; spins < kSpins; ++spins) {
    if (epoch() != seen) return epoch();
    pause();
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return epoch() != seen; });
  sleepers_.fetch_sub(1);
  return epoch();
}

}  // namespace pykv::cpu
