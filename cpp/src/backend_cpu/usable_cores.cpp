#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#include "backend_cpu/thread_pool.h"

namespace pykv::cpu {
namespace {

std::uint32_t cores_of_affinity() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    return static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&set)));
#endif
  return std::max(1U, std::thread::hardware_concurrency());
}

// Control groups, version 2: "quota period" in microseconds, or "max period".
std::uint32_t cores_of_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return ~0U;
  return static_cast<std::uint32_t>(std::clamp(std::ceil(quota / period), 1.0, 65536.0));
}

}  // namespace

std::uint32_t usable_cores() { return std::min(cores_of_affinity(), cores_of_quota()); }

}  // namespace pykv::cpu
