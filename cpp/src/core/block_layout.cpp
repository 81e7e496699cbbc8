#include "pykv/block_layout.h"

#include <string>

#include "pykv/errors.h"

namespace pykv {
namespace {

constexpr std::size_t kTileAlign = 64;     // one cache line, one AVX-512 vector
constexpr std::size_t kBlockAlign = 4096;  // a page: blocks are committed and released alone
constexpr std::size_t kScaleBytes = 2;     // f16

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Bytes of one element without its scale.
std::size_t element_bytes(DType type) {
  const DTypeTraits& t = traits(type);
  return t.block_elements == 1 ? t.block_bytes : 1;
}

std::size_t scales_per_cell(DType type, std::uint32_t dim) {
  const DTypeTraits& t = traits(type);
  return t.block_elements == 1 ? 0 : dim / t.block_elements;
}

void check_tile(const char* side, DType type, std::uint32_t dim) {
  const DTypeTraits& t = traits(type);
  if (!t.for_kv) {
    throw InvalidArgument(std::string("[BlockLayout] ") + t.name + " is not a " + side +
                          " type of this build; use f32, f16 or q8_0");
  }
  if (dim == 0 || dim % t.block_elements != 0) {
    throw InvalidArgument(std::string("[BlockLayout] ") + t.name +
                          " needs a head size that is a multiple of " + std::to_string(t.block_elements) +
                          ", " + side + "_dim is " + std::to_string(dim) + "; use f16 or f32");
  }
}

}  // namespace

TileLayout k_tile_layout(DType type, std::uint32_t k_dim) {
  check_tile("k", type, k_dim);
  TileLayout tile{.type = type, .dim = k_dim};
  tile.values_offset = round_up(scales_per_cell(type, k_dim) * kGroupCells * kScaleBytes, kTileAlign);
  tile.group_bytes =
      round_up(tile.values_offset + std::size_t{k_dim} * kGroupCells * element_bytes(type), kTileAlign);
  tile.bytes = tile.group_bytes * (kBlockCells / kGroupCells);
  return tile;
}

TileLayout v_tile_layout(DType type, std::uint32_t v_dim) {
  check_tile("v", type, v_dim);
  TileLayout tile{.type = type, .dim = v_dim};
  tile.values_offset = round_up(scales_per_cell(type, v_dim) * kBlockCells * kScaleBytes, kTileAlign);
  tile.bytes =
      round_up(tile.values_offset + std::size_t{v_dim} * kBlockCells * element_bytes(type), kTileAlign);
  return tile;
}

BlockLayout::BlockLayout(const LayerTable& layers, std::uint32_t pool, DType type_k, DType type_v)
    : type_k_(type_k), type_v_(type_v), places_(layers.size()) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].pool != pool) continue;
    LayerPlace& place = places_[i];
    place.kv_heads = layers[i].kv_heads;
    place.offset = offset;
    place.k = k_tile_layout(type_k, layers[i].k_dim);
    place.v = v_tile_layout(type_v, layers[i].v_dim);
    offset += place.kv_heads * place.head_stride();
  }
  payload_bytes_ = offset;
  block_bytes_ = round_up(offset, kBlockAlign);
}

std::size_t BlockLayout::bytes_per_cell() const { return (payload_bytes_ + kBlockCells - 1) / kBlockCells; }

}  // namespace pykv
