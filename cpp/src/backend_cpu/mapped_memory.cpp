#include "backend_cpu/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

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

MappedMemory MappedMemory::allocate(std::size_t bytes) {
  return {map(bytes, PROT_READ | PROT_WRITE, 0), bytes};
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

}  // namespace pykv::cpu
