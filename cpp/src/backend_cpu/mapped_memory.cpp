#include "backend_cpu/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>

namespace pykv::cpu {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// What is mapped for a range: its pages and, with PYKV_POISON, one before and one behind them.
struct Mapping {
  std::size_t pages;  // of the range, in bytes
  std::size_t fence = PYKV_POISON ? page_bytes() : 0;
  std::size_t bytes = pages + 2 * fence;

  explicit Mapping(std::size_t range) : pages((range + page_bytes() - 1) / page_bytes() * page_bytes()) {}
  // From the range's begin to the mapping's, and back.
  std::size_t lead(std::size_t range) const { return PYKV_POISON ? fence + pages - range : 0; }
};

std::byte* map(std::size_t range, int protection, int flags) {
  if (range > std::numeric_limits<std::size_t>::max() / 2) return nullptr;
  const Mapping mapping(range);
  void* const address = mmap(nullptr, mapping.bytes, mapping.fence == 0 ? protection : PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto* const base = static_cast<std::byte*>(address);
  if (mapping.fence != 0 && mprotect(base + mapping.fence, mapping.pages, protection) != 0) {
    munmap(address, mapping.bytes);
    return nullptr;
  }
  return base + mapping.lead(range);
}

bool touch(std::byte* data, std::size_t bytes) {
#if defined(MADV_POPULATE_WRITE)  // Linux 5.14: an error instead of a signal when memory is short
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
#endif
  for (std::size_t at = 0; at < bytes; at += page_bytes())
    *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  return true;
}

}  // namespace

MappedMemory MappedMemory::allocate(std::size_t bytes, bool large_pages) {
  std::byte* const data = map(bytes, PROT_READ | PROT_WRITE, 0);
#if defined(MADV_HUGEPAGE)
  if (data != nullptr && large_pages) {
    const Mapping mapping(bytes);
    static_cast<void>(madvise(data - mapping.lead(bytes) + mapping.fence, mapping.pages, MADV_HUGEPAGE));
  }
#else
  static_cast<void>(large_pages);
#endif
  return {data, bytes};
}

MappedMemory MappedMemory::reserve(std::size_t bytes, bool large_pages) {
  std::byte* const data = map(bytes, PROT_NONE, MAP_NORESERVE);
#if defined(MADV_HUGEPAGE)
  large_pages = large_pages && !PYKV_POISON && data != nullptr && madvise(data, bytes, MADV_HUGEPAGE) == 0;
#else
  large_pages = false;
#endif
  return {data, bytes, large_pages};
}

MappedMemory::~MappedMemory() {
  if (data_ == nullptr) return;
  const Mapping mapping(bytes_);
  munmap(data_ - mapping.lead(bytes_), mapping.bytes);
}

bool MappedMemory::commit(std::size_t offset, std::size_t bytes) {
  std::size_t begin = offset, end = offset + bytes;
  if (large_pages_) {  // one is taken only where all of it is usable
    constexpr std::size_t kLargePage = std::size_t{2} << 20;
    const std::size_t lead = reinterpret_cast<std::uintptr_t>(data_) % kLargePage;
    begin = std::max(lead, (begin + lead) / kLargePage * kLargePage) - lead;
    end = std::min((end + lead + kLargePage - 1) / kLargePage * kLargePage - lead,
                   (bytes_ + page_bytes() - 1) / page_bytes() * page_bytes());
  }
  return mprotect(data_ + begin, end - begin, PROT_READ | PROT_WRITE) == 0 && touch(data_ + offset, bytes);
}

void MappedMemory::release(std::size_t offset, std::size_t bytes) {
  madvise(data_ + offset, bytes, MADV_DONTNEED);
  // Only a guard: if the system refuses to split the mapping, the pages stay readable
  // as zeros, and the pool's own table still refuses access.
  static_cast<void>(mprotect(data_ + offset, bytes, PROT_NONE));
}

std::byte* WeightMemory::take(std::size_t bytes) {
  constexpr std::size_t kRange = PYKV_POISON ? 0 : std::size_t{32} << 20;  // 0: one for each weight
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
