// Floor 1. Panels of the K types (k_blocks.h): where the parts of 16 lanes lie. Values are
// those of the file, bit for bit, in a little more room than there.
//
//   scales, block by block   d, f16 [16 lanes]; with minimums: dmin, f16 [16]; then
//     q2_k                   scales and then minimums, each two rows of words [16]: that of
//                            group g in bits 4 * (g % 8) of row g / 8
//     others                 i8 [groups][16]; with minimums: again
//   values                   for every 32 elements `bits` rows of words [16]
//
// The rows hold the lower part of the codes, then the rest: q2_k 2 bits; q3_k 2 and 1; q4_k
// 4; q5_k 4 and 1; q6_k 4 and 2. A part of b bits takes b rows. Of the elements 4 j … 4 j + 3
// of the 32 it is row j % b, bits b * (j / b) of each byte: four neighbouring elements of a
// lane become one operand of a dot product by a shift and a mask.
#pragma once

#include "kernels/kernels.h"
#include "quant/k_blocks.h"

namespace pykv::kernels {

inline constexpr std::size_t kKUnit = 32;  // elements whose codes lie together

constexpr int k_low_bits(DType type) { return quant::k_format(type).bits < 4 ? 2 : 4; }

// Offsets inside a block's scales, and their size.
struct KScalePlace {
  std::size_t scales, minimums, bytes;
};
constexpr KScalePlace k_scale_place(DType type) {
  const quant::KFormat format = quant::k_format(type);
  const std::size_t first = kPanelWidth * sizeof(std::uint16_t) * (format.minimum ? 2 : 1);
  const std::size_t each = kPanelWidth * (type == DType::q2_k ? 8 : format.groups);
  return {first, first + each, first + each * (format.minimum ? 2 : 1)};
}

constexpr std::size_t k_unit_bytes(DType type) {
  return static_cast<std::size_t>(quant::k_format(type).bits) * kPanelWidth * sizeof(std::uint32_t);
}

// Block `index` of lane `lane`, to and from a panel with the given parts.
void store_k_block(DType type, const quant::KBlock& block, std::size_t index, std::uint32_t lane,
                   std::byte* scales, std::byte* values);
quant::KBlock load_k_block(DType type, std::size_t index, std::uint32_t lane, const std::byte* scales,
                           const std::byte* values);

}  // namespace pykv::kernels
