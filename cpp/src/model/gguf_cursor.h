// Floor 4. Reads a GGUF header front to back. Every read is checked against the bytes
// that are left, so no count or length in the file is trusted. Throws CorruptModel with
// the byte offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "model/gguf_format.h"

namespace pykv::gguf {

class Cursor {
 public:
  // `path` is for messages; both must outlive the cursor.
  Cursor(std::span<const std::byte> file, const std::string& path);

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return bytes_.size() - position_; }

  template <class T>
  T number(const char* what) {
    require(sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  // A length and that many bytes; a view into the file.
  std::string_view string(std::uint64_t max_bytes, const char* what);
  Kind read_kind(const char* what);
  // A count of things of at least `min_bytes` each.
  std::uint64_t count(std::uint64_t min_bytes, std::uint64_t max_count, const char* what);
  // Passes over one value of `kind` (checking booleans, strings and nested arrays).
  void skip_value(Kind kind, std::uint32_t depth = 0);

  // "… byte 1234: <message>; the file is damaged …"
  [[noreturn]] void fail(const std::string& message) const;

 private:
  void require(std::uint64_t bytes, const char* what) const;
  void skip_array(std::uint32_t depth);

  std::span<const std::byte> bytes_;
  std::uint64_t file_bytes_;
  const std::string& path_;
  std::uint64_t position_ = 0;
};

}  // namespace pykv::gguf
