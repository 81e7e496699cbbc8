// Floor 4. Values of GGUF metadata by their place in the file, which the index has checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "model/gguf_format.h"

namespace pykv::gguf {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

inline std::string_view load_string(const std::byte* at) {
  return {reinterpret_cast<const char*>(at + sizeof(std::uint64_t)), load<std::uint64_t>(at)};
}

// nullopt: not of a signed kind.
inline std::optional<std::int64_t> load_signed(Kind kind, const std::byte* at) {
  switch (kind) {
    case Kind::i8:
      return load<std::int8_t>(at);
    case Kind::i16:
      return load<std::int16_t>(at);
    case Kind::i32:
      return load<std::int32_t>(at);
    case Kind::i64:
      return load<std::int64_t>(at);
    default:
      return std::nullopt;
  }
}

// nullopt: not of an unsigned kind.
inline std::optional<std::uint64_t> load_unsigned(Kind kind, const std::byte* at) {
  switch (kind) {
    case Kind::u8:
      return load<std::uint8_t>(at);
    case Kind::u16:
      return load<std::uint16_t>(at);
    case Kind::u32:
      return load<std::uint32_t>(at);
    case Kind::u64:
      return load<std::uint64_t>(at);
    default:
      return std::nullopt;
  }
}

}  // namespace pykv::gguf
