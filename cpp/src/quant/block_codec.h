// Floor 1, private. The table of storage formats: everything that is known of a type, once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "pykv/dtype.h"

namespace pykv::quant {

struct Format {
  DTypeTraits traits;
  // Blocks of traits.block_elements; nullptr for the types without blocks, and where nothing
  // encodes. The rules are those of quant.h.
  void (*encode)(const float* values, std::byte* out) = nullptr;
  void (*decode)(const std::byte* bytes, float* out) = nullptr;
};
std::span<const Format> formats();  // in the order of DType
const Format& format(DType type);   // InvalidArgument for a number that is no type

inline constexpr std::size_t kBlock = 32;  // elements of a block of the types that K and V may have

inline void store16(std::byte* to, std::uint16_t bits) { std::memcpy(to, &bits, sizeof bits); }

inline std::uint16_t load16(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

}  // namespace pykv::quant
