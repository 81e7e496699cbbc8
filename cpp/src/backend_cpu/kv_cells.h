// Floor 2. K and V of one cell and KV head: values in float32, or the stored bytes as they
// are. `block` is the block's first byte, `cell` the offset of the cell inside it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pykv/block_layout.h"

namespace pykv::cpu {

struct CellHead {
  std::byte* block = nullptr;
  std::uint32_t cell = 0;
  std::uint32_t head = 0;
};

using LayerPlace = BlockLayout::LayerPlace;

void encode_k(const LayerPlace& place, CellHead to, const float* values);
void decode_k(const LayerPlace& place, CellHead from, float* values);
void encode_v(const LayerPlace& place, CellHead to, const float* values);  // not for a view of K
void decode_v(const LayerPlace& place, CellHead from, float* values);

// Bytes, whatever they stand for.
void copy_k(const LayerPlace& place, CellHead from, CellHead to);
void copy_v(const LayerPlace& place, CellHead from, CellHead to);  // nothing for a view of K

}  // namespace pykv::cpu
