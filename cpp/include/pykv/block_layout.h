// Floor 1. Where the bytes of a block lie.
//
//   block  = for each layer of the pool, for each KV head:  [K tile][V tile]
//   K tile = 4 groups of 16 cells, each: [scales, padded to 64 bytes][values]
//            values: element-major, value(dim d, lane c) at (d * 16 + c) * elem
//            scales: q8_0 only, f16, scale(d / 32, lane c) at ((d / 32) * 16 + c) * 2
//   V tile = [scales][values], cell-major:
//            values: value(cell c, dim d) at (c * v_dim + d) * elem
//            scales: q8_0 only, f16, scale(cell c, d / 32) at (c * v_dim / 32 + d / 32) * 2
//
// K lies element-major in groups of 16, so that one vector holds one element of 16
// cells and a score is a plain sequential sum over elements: the same order of
// additions on every instruction set. V lies cell-major, so that one vector holds
// 16 elements of one cell and the sum over cells is sequential too. Every tile
// starts on a multiple of 64 bytes. Bytes outside this header's offsets are never
// read. The layout is private to a process: snapshots and export use GGUF rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pykv/dtype.h"
#include "pykv/layer_table.h"
#include "pykv/types.h"

namespace pykv {

inline constexpr std::uint32_t kGroupCells = 16;

struct TileLayout {
  DType type = DType::f16;
  std::uint32_t dim = 0;          // elements per cell and head
  std::size_t bytes = 0;          // whole tile, multiple of 64
  std::size_t group_bytes = 0;    // K: one group of 16 cells; V: 0
  std::size_t values_offset = 0;  // K: inside a group; V: inside the tile
};

TileLayout k_tile_layout(DType type, std::uint32_t k_dim);
TileLayout v_tile_layout(DType type, std::uint32_t v_dim);

class BlockLayout {
 public:
  // Layout of `pool`'s layers. `layers` must have passed validate().
  // Throws InvalidArgument if a quantized type does not divide the head size.
  BlockLayout(const LayerTable& layers, std::uint32_t pool, DType type_k, DType type_v);

  std::size_t block_bytes() const { return block_bytes_; }  // multiple of 4096
  std::size_t bytes_per_cell() const;                       // payload, rounded up
  DType type_k() const { return type_k_; }
  DType type_v() const { return type_v_; }

  struct LayerPlace {
    std::uint32_t kv_heads = 0;
    std::size_t offset = 0;  // of this layer inside the block
    TileLayout k;
    TileLayout v;
    std::size_t head_stride() const { return k.bytes + v.bytes; }
    std::size_t k_tile(std::uint32_t head) const { return offset + head * head_stride(); }
    std::size_t v_tile(std::uint32_t head) const { return k_tile(head) + k.bytes; }
  };
  // Place of layer `layer` (index into the whole table). Layers of other pools
  // have kv_heads == 0.
  const LayerPlace& place(std::uint32_t layer) const { return places_.at(layer); }
  std::uint32_t layer_count() const { return static_cast<std::uint32_t>(places_.size()); }

 private:
  DType type_k_;
  DType type_v_;
  std::size_t payload_bytes_ = 0;  // without the rounding to whole pages
  std::size_t block_bytes_ = 0;
  std::vector<LayerPlace> places_;
};

}  // namespace pykv
