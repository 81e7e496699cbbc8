// Floor 1. Weight matrices as panels: how the bytes of a GGUF matrix are regrouped, once,
// when a weight is made. The values stay what they were, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pykv/dtype.h"

namespace pykv::kernels {

// A panel has 16 rows of the matrix as lanes. Its parts, scales, fifth bits and values, lie
// in that order; each starts on a multiple of 64 bytes.
//   K types  as k_panel.h says
//   others   as in a group of 16 cells of K (block_layout.h), a row for a cell; bf16 with an
//            odd number of columns has one column of zeros more
// A vector of words holds four neighbouring k of every lane, which is what dot-product
// instructions take.
struct PanelLayout {
  std::size_t fifth_offset = 0;
  std::size_t values_offset = 0;
  std::size_t bytes = 0;
};

bool has_int8_form(DType type);  // linear_int8 takes it: those of 4, 5, 6 and 8 bits but iq4_nl
// `cols` is a multiple of the type's block.
PanelLayout panel_layout(DType type, std::uint32_t cols);

// Rows [0, rows) of at most 16, in GGUF's row layout, become one panel; missing rows
// become zeros. `panel` holds panel_layout().bytes zero bytes.
void pack_panel(DType type, std::uint32_t rows, std::uint32_t cols, const std::byte* source,
                std::byte* panel);

// Decodes lane `lane` of a panel, all its columns; equal to decode_row of the source row.
void unpack_lane(DType type, const std::byte* panel, std::uint32_t lane, std::span<float> out);

}  // namespace pykv::kernels
