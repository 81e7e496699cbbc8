#include "model/gguf_cursor.h"

#include <algorithm>

#include "model/printable.h"
#include "pykv/errors.h"

namespace pykv::gguf {

Cursor::Cursor(std::span<const std::byte> file, const std::string& path)
    : bytes_(file.first(std::min<std::size_t>(file.size(), kMaxHeaderBytes))),
      file_bytes_(file.size()),
      path_(path) {}

void Cursor::fail(const std::string& message) const {
  throw CorruptModel("[GgufFile.open] " + printable(path_, 4096) + ", byte " + std::to_string(position_) +
                     ": " + message + "; the file is damaged or incomplete, download or convert it again");
}

void Cursor::require(std::uint64_t bytes, const char* what) const {
  if (bytes <= remaining()) return;
  if (file_bytes_ > bytes_.size() && bytes <= kMaxHeaderBytes)
    fail(std::string(what) + " lies beyond the first " + std::to_string(kMaxHeaderBytes) +
         " bytes, the most a header may have");
  fail(std::string(what) + " needs " + std::to_string(bytes) + " bytes, but only " +
       std::to_string(remaining()) + " are left");
}

std::string_view Cursor::string(std::uint64_t max_bytes, const char* what) {
  const auto length = number<std::uint64_t>(what);
  if (length > max_bytes)
    fail(std::string(what) + " is " + std::to_string(length) + " bytes long, the limit is " +
         std::to_string(max_bytes));
  require(length, what);
  const std::string_view view(reinterpret_cast<const char*>(bytes_.data() + position_), length);
  position_ += length;
  return view;
}

Kind Cursor::read_kind(const char* what) {
  const auto id = number<std::uint32_t>(what);
  if (id >= kKindCount)
    fail(std::string(what) + " is " + std::to_string(id) + ", the highest is " +
         std::to_string(kKindCount - 1));
  return static_cast<Kind>(id);
}

std::uint64_t Cursor::count(std::uint64_t min_bytes, std::uint64_t max_count, const char* what) {
  const auto value = number<std::uint64_t>(what);
  const std::uint64_t fitting = remaining() / min_bytes;
  if (value > fitting)
    fail(std::string(what) + " is " + std::to_string(value) + ", but the " + std::to_string(remaining()) +
         " bytes that are left hold at most " + std::to_string(fitting));
  if (value > max_count)
    fail(std::string(what) + " is " + std::to_string(value) + ", the limit is " + std::to_string(max_count));
  return value;
}

void Cursor::skip_value(Kind kind, std::uint32_t depth) {
  if (kind == Kind::array) {
    skip_array(depth + 1);
  } else if (kind == Kind::string) {
    string(kMaxStringBytes, "string value");
  } else if (kind == Kind::boolean) {
    if (number<std::uint8_t>("bool value") > 1) fail("a bool value is neither 0 nor 1");
  } else {
    require(kind_bytes(kind), "value");
    position_ += kind_bytes(kind);
  }
}

void Cursor::skip_array(std::uint32_t depth) {
  if (depth > kMaxArrayDepth)
    fail("arrays are nested deeper than " + std::to_string(kMaxArrayDepth) + " levels");
  const Kind element = read_kind("array element type");
  // The least an element takes: a string its length, an array its type and count.
  const std::uint64_t least = element == Kind::array ? 12 : element == Kind::string ? 8 : kind_bytes(element);
  const std::uint64_t elements = count(least, UINT64_MAX, "array element count");
  if (element == Kind::array || element == Kind::string || element == Kind::boolean) {
    for (std::uint64_t i = 0; i < elements; ++i) skip_value(element, depth);
  } else {
    position_ += elements * least;
  }
}

}  // namespace pykv::gguf
