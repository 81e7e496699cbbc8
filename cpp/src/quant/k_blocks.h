// Floor 1. Blocks of the K types, which only weights have. 256 elements form groups; each
// group has a small integer scale, which multiplies the block's f16 scale d, and with some
// types a small minimum, which multiplies the block's f16 dmin:
//
//   value = d * scale * (code - zero) - dmin * minimum
//
// In float32 the products are exact in whatever order (11 + 8 + 5 bits at most), and the
// subtraction is the only rounding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "pykv/dtype.h"

namespace pykv::quant {

inline constexpr std::size_t kKBlock = 256;
inline constexpr std::size_t kMostGroups = 16;

struct KFormat {
  std::size_t groups;  // of a block, 8 or 16
  int bits;            // of a code
  int zero;
  bool minimum;
};

// `type` is one for which is_k_type() holds.
constexpr KFormat k_format(DType type) {
  switch (type) {
    case DType::q2_k:
      return {16, 2, 0, true};
    case DType::q3_k:
      return {16, 3, 4, false};
    case DType::q4_k:
      return {8, 4, 0, true};
    case DType::q5_k:
      return {8, 5, 0, true};
    default:
      return {16, 6, 32, false};  // q6_k
  }
}

// A block taken apart. Scales and minimums that the type does not have are not used.
struct KBlock {
  std::uint16_t d = 0, dmin = 0;  // bits of f16
  std::array<std::int8_t, kMostGroups> scales{};
  std::array<std::int8_t, kMostGroups> minimums{};
  std::array<std::uint8_t, kKBlock> codes{};
};

// A block in GGUF's layout, and one taken apart as 256 values.
KBlock read_k_block(DType type, const std::byte* bytes);
void decode_k_block(DType type, const KBlock& block, float* out);

}  // namespace pykv::quant
