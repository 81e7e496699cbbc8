// Memory that runs out where a test wants it to: the program's operator new, and the system
// calls that give a pool its pages. Include it in one source of a program; nothing fails but
// between arm() and disarm(). One thread.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace failing_memory {

enum class Mode : std::uint8_t { one, all_from };  // that one alone, or it and those after it

struct Plan {
  std::int64_t requests_left = -1;  // before the one that fails; negative: none does
  Mode mode = Mode::one;
  bool failed = false;
};
inline Plan plan;

inline void arm(std::int64_t failing, Mode mode) { plan = {failing, mode, false}; }

// Whether anything failed since arm().
inline bool disarm() {
  const bool failed = plan.failed;
  plan = {};
  return failed;
}

inline bool next_fails() {
  if (plan.requests_left < 0) return false;
  if (plan.requests_left > 0) {
    --plan.requests_left;
    return false;
  }
  plan.failed = true;
  if (plan.mode == Mode::one) plan.requests_left = -1;
  return true;
}

inline void* allocate(std::size_t bytes, std::size_t alignment) {
  if (next_fails()) throw std::bad_alloc();
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace failing_memory

void* operator new(std::size_t bytes) { return failing_memory::allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return failing_memory::allocate(bytes, static_cast<std::size_t>(alignment));
}
// std::stable_sort takes its buffer by it, and AddressSanitizer has one of its own.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

// Pages made usable are a request too; pages given back are not.
extern "C" int mprotect(void* address, std::size_t bytes, int protection) noexcept {
  if (protection != PROT_NONE && failing_memory::next_fails()) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_mprotect, address, bytes, protection));
}
