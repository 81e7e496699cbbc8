// Counts allocations and the bytes in use, and lets one fail. Replaces the program's operator new: include it
// in the one source of a test.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace allocations {

inline std::int64_t left = -1;                // until one fails; negative: none does
inline std::atomic<std::uint64_t> count = 0;  // by all threads
inline std::atomic<std::size_t> bytes = 0;    // as the allocator rounds them

inline void* allocate(std::size_t size) {
  if (left == 0) {
    left = -1;
    throw std::bad_alloc();
  }
  if (left > 0) --left;
  ++count;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  bytes += malloc_usable_size(memory);
  return memory;
}

inline void release(void* memory) noexcept {
  if (memory != nullptr) bytes -= malloc_usable_size(memory);
  std::free(memory);
}

// Of `call`.
template <class Call>
std::uint64_t of(Call call) {
  const std::uint64_t before = count;
  call();
  return count - before;
}

// Calls `change` with its first, second, … allocation failing, until none is left to fail;
// `prepare` comes before and `after(failed)` behind each. Returns how many failed.
template <class Prepare, class Change, class After>
int fail_each(Prepare prepare, Change change, After after) {
  for (int failing = 0;; ++failing) {
    prepare();
    left = failing;
    bool failed = false;
    try {
      change();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    const bool none_failed = left >= 0;
    left = -1;
    after(failed);
    if (none_failed) return failing;
  }
}

}  // namespace allocations

void* operator new(std::size_t bytes) { return allocations::allocate(bytes); }
// std::stable_sort takes its buffer by it, and AddressSanitizer has one of its own.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { allocations::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { allocations::release(memory); }
