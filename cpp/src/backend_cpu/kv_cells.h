// Floor 2. K and V of one cell and KV head: values in float32 (transformed on the way where
// the layout says so), or the stored bytes as they are. `block` is the block's first byte, `cell` the offset
// of the cell inside it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "pykv/block_layout.h"

namespace pykv::cpu {

struct CellHead {
  std::byte* block = nullptr;
  std::uint32_t cell = 0;
  std::uint32_t head = 0;
};

using LayerPlace = BlockLayout::LayerPlace;

void encode_k(const kernels::Kernels& kernels, const LayerPlace& place, CellHead to, const float* values);
void decode_k(const kernels::Kernels& kernels, const LayerPlace& place, CellHead from, float* values);
// Not for a view of K.
void encode_v(const kernels::Kernels& kernels, const LayerPlace& place, CellHead to, const float* values);
void decode_v(const kernels::Kernels& kernels, const LayerPlace& place, CellHead from, float* values);

// Bytes, whatever they stand for, as rows in GGUF's row layout: row_bytes(type, dim) of them.
void load_k(const LayerPlace& place, CellHead from, std::byte* row);
void store_k(const LayerPlace& place, CellHead to, const std::byte* row);
void load_v(const LayerPlace& place, CellHead from, std::byte* row);  // not for a view of K
void store_v(const LayerPlace& place, CellHead to, const std::byte* row);
// `values` as encode_k would store them.
void encode_k_row(const kernels::Kernels& kernels, const LayerPlace& place, const float* values,
                  std::byte* row);

void copy_k(const LayerPlace& place, CellHead from, CellHead to);
void copy_v(const LayerPlace& place, CellHead from, CellHead to);  // nothing for a view of K

// Bytes that decode to NaN, whatever the types are.
void poison(const LayerPlace& place, CellHead cell);

}  // namespace pykv::cpu
