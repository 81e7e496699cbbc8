#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::uint32_t kRounds = 1U << 16;                 // a few hundred microseconds
constexpr std::size_t kReadBytes = std::size_t{256} << 20;  // more than caches hold
constexpr std::size_t kReadUnit = 1024;

// Work of one try, done by all threads at the same time.
std::uint64_t work(cpu::State& state, Limit limit, const cpu::MappedMemory& memory) {
  std::atomic<std::uint64_t> done{0};
  const std::uint32_t threads = state.threads->threads();
  const std::size_t share = memory.bytes() / threads / kReadUnit * kReadUnit;
  state.threads->run(threads, [&](std::uint32_t task, std::uint32_t) {
    float sink[3] = {0.0F, 0.5F, 0.25F};
    const kernels::Kernels& kernels = *state.kernels;
    switch (limit) {
      case Limit::f32_operations:
        done += kernels.burn_f32(kRounds, sink);
        break;
      case Limit::int8_operations:
        done += kernels.burn_int8(kRounds, sink);
        break;
      case Limit::read_bytes:
        done += kernels.read_bytes(memory.data() + task * share, share, sink);
        break;
    }
  });
  return done;
}

// Written once, or reading it would read one page of zeros again and again.
cpu::MappedMemory memory_to_read() {
  cpu::MappedMemory memory = cpu::MappedMemory::allocate(kReadBytes, true);
  if (memory.data() == nullptr)
    throw OutOfMemory("[Backend.measure_limit] the system has no room for " + std::to_string(kReadBytes) +
                      " bytes");
  std::memset(memory.data(), 1, kReadBytes);
  return memory;
}

}  // namespace

double Backend::measure_limit(Limit limit, double seconds) {
  const auto call = impl_->enter();
  if (!(seconds >= 0 && seconds <= 60))
    cpu::refuse("measure_limit", std::to_string(seconds) + " seconds; needed are 0 to 60");
  const cpu::MappedMemory memory = limit == Limit::read_bytes ? memory_to_read() : cpu::MappedMemory();
  const Steady::time_point end =
      Steady::now() + std::chrono::duration_cast<Steady::duration>(std::chrono::duration<double>(seconds));
  double best = 0;
  do {
    const Steady::time_point begin = Steady::now();
    const auto done = static_cast<double>(work(*impl_, limit, memory));
    best = std::max(best, done / std::chrono::duration<double>(Steady::now() - begin).count());
  } while (Steady::now() < end);
  return best;
}

}  // namespace pykv
