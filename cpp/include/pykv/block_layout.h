// Floor 1. Where the bytes of a block lie.
//
//   block  = for each layer of the pool, for each KV head:  [K tile][V tile]
//   K tile = 4 groups of 16 cells, each: [scales][fifth bits][values]
//   V tile = [scales][fifth bits][values]
//
// Parts start on multiples of 64 bytes, and so does every tile and group. Scales and fifth
// bits are there where the type has them (quant.h). Element d of a cell belongs to block
// b = d / 32 as its element i = d % 32; byte j of the nibbles has elements j and j + 16 in
// its low and high half, as in a row. Offsets inside the parts:
//
//   K, lane c of 16               | V, cell c of 64, B = v_dim / 32
//   scales, f16
//     d      (b * 16 + c) * 2     | (c * B + b) * 2
//     with m: d (b * 32 + c) * 2  | (c * B + b) * 4
//             m     32 later      |         2 later
//   fifth bits, u32
//     (b * 16 + c) * 4            | (c * B + b) * 4
//     bit i % 4 * 8 + i / 4       | bit i
//   values
//     f32, f16   (d * 16 + c) * w | (c * v_dim + d) * w, w the size of an element
//     bf16  (d / 2 * 16 + c) * 4 + d % 2 * 2 | likewise
//     q8_0  (d / 4 * 16 + c) * 4 + d % 4, plus 128 | c * v_dim + d
//     nibbles  ((b * 4 + j / 4) * 16 + c) * 4 + j % 4 | (c * B + b) * 16 + j
//
// K lies element-major in groups of 16, so that one vector holds one element of 16 cells
// and a score is a plain sequential sum over elements: the same order of additions on
// every instruction set. Quantized K lies in words of four neighbouring elements: 64 bytes
// are one operand of the dot-product instructions, which want it unsigned (hence the 128);
// the two halves of 64 bytes of nibbles are two such operands, and the fifth bits of
// operand g, shifted to place, are the word's bits g, g + 8, g + 16, g + 24. V lies
// cell-major, so that one vector holds 16 elements of one cell and the sum over cells is
// sequential too. Bytes outside these offsets are never read. The layout is private to a
// process: snapshots and export use GGUF rows.
//
// Quantized values can be stored transformed: an outlier then spreads over its block and
// costs the others less. The transform is the orthonormal Walsh-Hadamard one in Sylvester's
// order (kernels.h) over blocks of a head's elements: of K the largest 64 * 2^k that divides
// the head size, of V 64; where 64 does not divide the head size there is none. The backend
// applies it to K, V and queries, and once more, its own inverse, to outputs: nobody else
// sees it but who exports rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pykv/dtype.h"
#include "pykv/layer_table.h"
#include "pykv/types.h"

namespace pykv {

inline constexpr std::uint32_t kGroupCells = 16;

struct TileLayout {
  DType type = DType::f16;
  std::uint32_t dim = 0;          // elements per cell and head
  std::uint32_t hadamard = 0;     // values are stored transformed, so many together; 0: as they are
  std::size_t bytes = 0;          // whole tile, multiple of 64
  std::size_t group_bytes = 0;    // K: one group of 16 cells; V: 0
  std::size_t fifth_offset = 0;   // K: inside a group; V: inside the tile
  std::size_t values_offset = 0;  // likewise
};

TileLayout k_tile_layout(DType type, std::uint32_t k_dim);
TileLayout v_tile_layout(DType type, std::uint32_t v_dim);

class BlockLayout {
 public:
  // Layout of `pool`'s layers. `layers` must have passed validate().
  // Throws InvalidArgument if a head size is no multiple of 32 (quantized types) or 8.
  // `hadamard`: transform quantized sides whose head size allows it.
  BlockLayout(const LayerTable& layers, std::uint32_t pool, DType type_k, DType type_v, bool hadamard = true);

  std::size_t block_bytes() const { return block_bytes_; }  // multiple of 4096; 0: no layer stores any
  std::size_t bytes_per_cell() const;                       // payload, rounded up
  DType type_k() const { return type_k_; }
  DType type_v() const { return type_v_; }

  struct LayerPlace {
    std::uint32_t kv_heads = 0;
    std::size_t offset = 0;  // of this layer inside the block
    TileLayout k;
    TileLayout v;  // of a view of K: the dim only, no bytes
    bool v_view_of_k = false;
    std::optional<std::uint32_t> kv_from_layer;  // the place is that layer's
    std::size_t head_stride() const { return k.bytes + v.bytes; }
    std::size_t k_tile(std::uint32_t head) const { return offset + head * head_stride(); }
    std::size_t v_tile(std::uint32_t head) const { return k_tile(head) + k.bytes; }
  };
  // Place of layer `layer` (index into the whole table). Layers of other pools
  // have kv_heads == 0; one that borrows another's K and V has its place.
  const LayerPlace& place(std::uint32_t layer) const { return places_.at(layer); }
  std::uint32_t stored_layers() const { return stored_layers_; }  // that have bytes in it
  std::uint32_t layer_count() const { return static_cast<std::uint32_t>(places_.size()); }

 private:
  DType type_k_;
  DType type_v_;
  std::size_t payload_bytes_ = 0;  // without the rounding to whole pages
  std::size_t block_bytes_ = 0;
  std::uint32_t stored_layers_ = 0;
  std::vector<LayerPlace> places_;
};

}  // namespace pykv
