#include "backend_cpu/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace pykv::cpu {
namespace {

std::byte* map(std::size_t bytes, int protection, int flags) {
  void* address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
}

bool touch(std::byte* data, std::size_t bytes) {
#if defined(MADV_POPULATE_WRITE)  // Linux 5.14: an error instead of a signal when memory is short
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
#endif
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < bytes; at += page) *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  return true;
}

}  // namespace

MappedMemory MappedMemory::allocate(std::size_t bytes, bool large_pages) {
  std::byte* const data = map(bytes, PROT_READ | PROT_WRITE, 0);
#if defined(MADV_HUGEPAGE)
  if (data != nullptr && large_pages) static_cast<void>(madvise(data, bytes, MADV_HUGEPAGE));
#else
  static_cast<void>(large_pages);
#endif
  return {data, bytes};
}

MappedMemory MappedMemory::reserve(std::size_t bytes) {
  return {map(bytes, PROT_NONE, MAP_NORESERVE), bytes};
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

bool MappedMemory::commit(std::size_t offset, std::size_t bytes) {
  return mprotect(data_ + offset, bytes, PROT_READ | PROT_WRITE) == 0 && touch(data_ + offset, bytes);
}

void MappedMemory::release(std::size_t offset, std::size_t bytes) {
  madvise(data_ + offset, bytes, MADV_DONTNEED);
  // Only a guard: if the system refuses to split the mapping, the pages stay readable
  // as zeros, and the pool's own table still refuses access.
  static_cast<void>(mprotect(data_ + offset, bytes, PROT_NONE));
}

std::byte* WeightMemory::take(std::size_t bytes) {
  constexpr std::size_t kRange = std::size_t{32} << 20;
  bytes = (bytes + 63) / 64 * 64;
  if (ranges_.empty() || ranges_.back().bytes() - used_ < bytes) {
    MappedMemory range = MappedMemory::allocate(std::max(bytes, kRange), true);
    if (range.data() == nullptr) return nullptr;
    ranges_.push_back(std::move(range));
    used_ = 0;
  }
  std::byte* const data = ranges_.back().data() + used_;
  used_ += bytes;
  return data;
}

}  // namespace pykv::cpu
