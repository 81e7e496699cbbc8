// Floor 1. One cell's row of a KV head, in GGUF's row layout, to and from its place in a K
// or V tile (block_layout.h). Bytes move; no value changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pykv/block_layout.h"

namespace pykv::kernels {

// Where the parts of a row lie: each a sequence of units, one every `stride` bytes.
struct CellPlace {
  DType type = DType::f32;
  std::uint32_t dim = 0;
  bool lane = false;            // of a group of K
  std::byte* scales = nullptr;  // units of 2 bytes
  std::byte* fifth = nullptr;   // of 4
  std::byte* values = nullptr;  // of 4; of f16 2
  std::size_t scale_stride = 0;
  std::size_t fifth_stride = 0;
  std::size_t value_stride = 0;
};

CellPlace k_place(const TileLayout& tile, std::byte* base, std::uint32_t cell);
CellPlace v_place(const TileLayout& tile, std::byte* base, std::uint32_t cell);

// `row` holds row_bytes(place.type, place.dim) bytes.
void store_cell(const CellPlace& place, const std::byte* row);
void load_cell(const CellPlace& place, std::byte* row);

}  // namespace pykv::kernels
