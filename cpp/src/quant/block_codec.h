// Floor 1, private. One block of 32 elements of each quantized type; the rules are those
// of quant.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pykv/dtype.h"

namespace pykv::quant {

inline constexpr std::size_t kBlock = 32;

struct BlockCodec {
  void (*encode)(const float* values, std::byte* out);
  void (*decode)(const std::byte* bytes, float* out);
};
const BlockCodec& block_codec(DType type);  // a quantized type

inline void store16(std::byte* to, std::uint16_t bits) { std::memcpy(to, &bits, sizeof bits); }

inline std::uint16_t load16(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

}  // namespace pykv::quant
