// Floor 1. Rows of activations as 8-bit integers, the form in which the fast linear layers
// take them.
//
// Rows stand in panels of at most kActivationRows. A panel of n rows holds, for each block of
// 32 elements, one after the other:
//
//   f32 scale[n]        largest magnitude of the block / 127
//   f32 scaled_sum[n]   scale * sum of q
//   i32 negated_sum[n]  -sum of q
//   i32 negated_half[n] -sum of the first 16 of q
//   i8  q[n][32]        element / scale, rounded to the nearest, ties to even: -127 … 127
//
// A block with NaN or infinity has such a scale, so that what is computed with it is not
// finite either. The bits of a row depend on the row alone and are the same on every tier.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pykv::kernels {

inline constexpr std::uint32_t kActivationRows = 16;
inline constexpr std::uint32_t kActivationBlock = 32;

// Bytes of one block of a panel of `rows` rows.
constexpr std::size_t activation_block_bytes(std::size_t rows) {
  return rows * (sizeof(float) * 2 + sizeof(std::int32_t) * 2 + kActivationBlock);
}

// Bytes of the panels of `rows` rows; all but the last one are full. `cols` is a multiple of 32.
constexpr std::size_t activation_bytes(std::size_t rows, std::size_t cols) {
  return cols / kActivationBlock * activation_block_bytes(rows);
}

// Where the parts of a block of a panel of `rows` rows lie.
struct ActivationBlock {
  float* scale;
  float* scaled_sum;
  std::int32_t* negated_sum;
  std::int32_t* negated_half;
  std::int8_t* q;

  ActivationBlock(std::byte* block, std::size_t rows)
      : scale(reinterpret_cast<float*>(block)),
        scaled_sum(scale + rows),
        negated_sum(reinterpret_cast<std::int32_t*>(scaled_sum + rows)),
        negated_half(negated_sum + rows),
        q(reinterpret_cast<std::int8_t*>(negated_half + rows)) {}

  // The same from row `row` on.
  ActivationBlock from(std::size_t row) const {
    ActivationBlock later = *this;
    later.scale += row;
    later.scaled_sum += row;
    later.negated_sum += row;
    later.negated_half += row;
    later.q += row * kActivationBlock;
    return later;
  }
};

// Blocks [first_block, last_block) of the rows of one panel.
struct QuantizeTask {
  const float* in = nullptr;
  std::size_t in_stride = 0;
  std::uint32_t rows = 0;  // of the panel
  std::uint32_t first_block = 0;
  std::uint32_t last_block = 0;
  std::byte* panel = nullptr;  // its first block
};

}  // namespace pykv::kernels
