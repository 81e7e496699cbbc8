#include "pykv/block_layout.h"

#include <numeric>
#include <string>

#include "pykv/errors.h"

namespace pykv {
namespace {

constexpr std::size_t kTileAlign = 64;       // one cache line, one AVX-512 vector
constexpr std::size_t kBlockAlign = 4096;    // a page: blocks are committed and released alone
constexpr std::uint32_t kFloatMultiple = 8;  // of the head sizes of plain types

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The parts of one group (K) or tile (V) of `cells` cells; returns their bytes.
std::size_t place_parts(TileLayout& tile, std::size_t cells) {
  const DTypeTraits& t = traits(tile.type);
  const std::size_t blocks = is_quantized(tile.type) ? tile.dim / t.block_elements : 0;
  const std::size_t scales = blocks * (has_minimum(tile.type) ? 4 : 2);
  const std::size_t fifth = has_fifth_bits(tile.type) ? blocks * 4 : 0;
  const std::size_t values =
      is_quantized(tile.type) ? blocks * code_bytes(tile.type) : std::size_t{tile.dim} * t.block_bytes;
  tile.fifth_offset = round_up(scales * cells, kTileAlign);
  tile.values_offset = tile.fifth_offset + round_up(fifth * cells, kTileAlign);
  return tile.values_offset + round_up(values * cells, kTileAlign);
}

void check_tile(const char* side, DType type, std::uint32_t dim) {
  const DTypeTraits& t = traits(type);
  if (!t.for_kv)
    throw InvalidArgument(std::string("[Cache] ") + t.name + " is not a " + side + " type; use f16");
  const std::uint32_t multiple = is_quantized(type) ? t.block_elements : kFloatMultiple;
  if (dim != 0 && dim % multiple == 0) return;
  throw InvalidArgument(std::string("[Cache] ") + t.name + " needs a head size that is a multiple of " +
                        std::to_string(multiple) + ", " + side + "_dim is " + std::to_string(dim) +
                        (is_quantized(type) ? "; use f16, bf16 or f32" : "; pad the heads"));
}

// The largest 64 * 2^k that divides `dim`, 0 if 64 does not.
std::uint32_t transform_size(std::uint32_t dim) {
  constexpr std::uint32_t kLeast = 64;
  return dim % kLeast == 0 ? dim & (0U - dim) : 0;
}

// As llama.cpp does, so that rows can be exchanged with it. V that is a view of K is
// transformed as K, in blocks that divide both.
void transform(BlockLayout::LayerPlace& place) {
  if (is_quantized(place.k.type))
    place.k.hadamard = transform_size(place.v_view_of_k ? std::gcd(place.k.dim, place.v.dim) : place.k.dim);
  if (place.v_view_of_k) {
    place.v.hadamard = place.k.hadamard;
  } else if (is_quantized(place.v.type) && place.v.dim % 64 == 0) {
    place.v.hadamard = 64;
  }
}

}  // namespace

TileLayout k_tile_layout(DType type, std::uint32_t k_dim) {
  check_tile("k", type, k_dim);
  TileLayout tile{.type = type, .dim = k_dim};
  tile.group_bytes = place_parts(tile, kGroupCells);
  tile.bytes = tile.group_bytes * (kBlockCells / kGroupCells);
  return tile;
}

TileLayout v_tile_layout(DType type, std::uint32_t v_dim) {
  check_tile("v", type, v_dim);
  TileLayout tile{.type = type, .dim = v_dim};
  tile.bytes = place_parts(tile, kBlockCells);
  return tile;
}

BlockLayout::BlockLayout(const LayerTable& layers, std::uint32_t pool, DType type_k, DType type_v,
                         bool hadamard)
    : type_k_(type_k), type_v_(type_v), places_(layers.size()) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].pool != pool || !stores_kv(layers[i])) continue;
    LayerPlace& place = places_[i];
    if (layers[i].kv_from_layer) {
      place = places_[*layers[i].kv_from_layer];
      place.kv_from_layer = layers[i].kv_from_layer;
      continue;
    }
    ++stored_layers_;
    place.kv_heads = layers[i].kv_heads;
    place.offset = offset;
    place.k = k_tile_layout(type_k, layers[i].k_dim);
    place.v_view_of_k = layers[i].v_view_of_k;
    place.v = place.v_view_of_k ? TileLayout{.type = type_k, .dim = layers[i].v_dim}
                                : v_tile_layout(type_v, layers[i].v_dim);
    if (hadamard) transform(place);
    offset += place.kv_heads * place.head_stride();
  }
  payload_bytes_ = offset;
  block_bytes_ = round_up(offset, kBlockAlign);
}

std::size_t BlockLayout::bytes_per_cell() const { return (payload_bytes_ + kBlockCells - 1) / kBlockCells; }

}  // namespace pykv
