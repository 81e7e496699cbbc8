// Floor 4. A regular file mapped read-only. Views into it stay valid while the object
// lives. The file must not be shortened by others meanwhile: the system would answer a
// read past the new end with a signal, as for every mapped file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace pykv {

class MappedFile {
 public:
  // Throws Error for what cannot be opened (missing, directory, device, permission) and
  // CorruptModel for an empty file; the message says what to do.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the system that the pages of a part are not needed now; a later read fetches them
  // again. Bytes outside the mapping are ignored.
  void drop_pages(std::span<const std::byte> part) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace pykv
