// Floor 2. A range of pages from the system: zero when first touched, 64-byte aligned,
// given back by the destructor. In a build with PYKV_POISON it ends where a page begins that
// cannot be touched, and another such page is before it: an access outside ends the program.
// Where `bytes` is no multiple of 64, data() is then aligned to its end only.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace pykv::cpu {

class MappedMemory {
 public:
  MappedMemory() = default;
  // Usable pages, large ones where the system has them if `large_pages`. nullptr data() if
  // the system has no such range.
  static MappedMemory allocate(std::size_t bytes, bool large_pages = false);
  // Address space only; pages must be made usable with commit().
  // With `large_pages` what is committed lies on large pages where the system has them, so that
  // up to one such page more is taken at either end.
  static MappedMemory reserve(std::size_t bytes, bool large_pages = false);
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        large_pages_(other.large_pages_) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(large_pages_, other.large_pages_);
    return *this;
  }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // Makes whole pages usable, zero, and touches them now, so that a later access cannot
  // fail. False: out of memory, the pages may or may not be usable.
  bool commit(std::size_t offset, std::size_t bytes);
  // Gives the memory of whole pages back; they are unusable until committed again.
  void release(std::size_t offset, std::size_t bytes);

 private:
  MappedMemory(std::byte* data, std::size_t bytes, bool large_pages = false)
      : data_(data), bytes_(bytes), large_pages_(large_pages) {}
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool large_pages_ = false;
};

// Memory for weights, which live as long as the backend. Taken from a few large ranges, so
// that they lie on large pages: reading all weights for each token is bound by memory, and
// 4 KiB pages cost it a fifth.
class WeightMemory {
 public:
  // Zero, 64-byte aligned; nullptr if the system has no memory.
  std::byte* take(std::size_t bytes);

 private:
  std::vector<MappedMemory> ranges_;
  std::size_t used_ = 0;  // of the last range
};

}  // namespace pykv::cpu
