// Floor 1. Weight matrices as panels: how the bytes of a GGUF matrix are regrouped, once,
// when a weight is made. The values stay what they were, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pykv/dtype.h"

namespace pykv::kernels {

// Inside a panel the scales come first, then the values (see Panel in kernels.h).
struct PanelLayout {
  std::size_t values_offset = 0;
  std::size_t bytes = 0;  // multiple of 64
};

bool is_panel_type(DType type);  // f32, f16, q8_0, q4_1
// `cols` is a multiple of the type's block.
PanelLayout panel_layout(DType type, std::uint32_t cols);

// Rows [0, rows) of at most 16, in GGUF's row layout, become one panel; missing rows
// become zeros. `panel` holds panel_layout().bytes zero bytes.
void pack_panel(DType type, std::uint32_t rows, std::uint32_t cols, const std::byte* source,
                std::byte* panel);

// Decodes lane `lane` of a panel, all its columns; equal to decode_row of the source row.
void unpack_lane(DType type, const std::byte* panel, std::uint32_t lane, std::span<float> out);

}  // namespace pykv::kernels
