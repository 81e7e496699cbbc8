// Floor 1. Weight matrices as panels: how the bytes of a GGUF matrix are regrouped, once,
// when a weight is made. The values stay what they were, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pykv/dtype.h"

namespace pykv::kernels {

// Inside a panel the scales come first, then the values:
//   f32, f16: value(k, lane) is element k * 16 + lane
//   q8_0: byte k % 4 of word (k / 4) * 16 + lane, plus kByteBias; d at (k / 32) * 16 + lane
//   q4_1: with i = k % 16, a nibble of byte i % 4 of word (k / 32 * 4 + i / 4) * 16 + lane, the
//         low one in the block's first half, the high one in its second, as in the file;
//         d at (k / 32) * 32 + lane, m 16 later
// Words have 32 bits, d and m are f16. A vector of words holds four neighbouring k of every
// lane, which is what dot-product instructions take.
struct PanelLayout {
  std::size_t values_offset = 0;
  std::size_t bytes = 0;  // multiple of 64
};

bool is_panel_type(DType type);  // f32, f16, q8_0, q4_1
bool has_int8_form(DType type);  // linear_int8 takes it: q8_0, q4_1
// `cols` is a multiple of the type's block.
PanelLayout panel_layout(DType type, std::uint32_t cols);

// Rows [0, rows) of at most 16, in GGUF's row layout, become one panel; missing rows
// become zeros. `panel` holds panel_layout().bytes zero bytes.
void pack_panel(DType type, std::uint32_t rows, std::uint32_t cols, const std::byte* source,
                std::byte* panel);

// Decodes lane `lane` of a panel, all its columns; equal to decode_row of the source row.
void unpack_lane(DType type, const std::byte* panel, std::uint32_t lane, std::span<float> out);

}  // namespace pykv::kernels
