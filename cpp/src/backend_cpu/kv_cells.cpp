#include "backend_cpu/kv_cells.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/kv_cell.h"
#include "pykv/quant.h"

namespace pykv::cpu {
namespace {

constexpr std::size_t kMaxRowBytes = kernels::kMaxHeadDim * sizeof(float);

kernels::CellPlace k_at(const LayerPlace& place, CellHead at) {
  return kernels::k_place(place.k, at.block + place.k_tile(at.head), at.cell);
}

kernels::CellPlace v_at(const LayerPlace& place, CellHead at) {
  return kernels::v_place(place.v, at.block + place.v_tile(at.head), at.cell);
}

void to_row(const kernels::Kernels& kernels, const TileLayout& tile, const float* values, std::byte* row) {
  float transformed[kernels::kMaxHeadDim];
  if (tile.hadamard != 0) {
    std::copy_n(values, tile.dim, transformed);
    kernels.hadamard(transformed, tile.hadamard, tile.dim / tile.hadamard);
    values = transformed;
  }
  if (tile.type == DType::f16) return kernels.encode_f16(values, tile.dim, row);
  if (tile.type == DType::q8_0) return kernels.encode_q8_0(values, tile.dim, row);
  encode_row(tile.type, {values, tile.dim}, {row, row_bytes(tile.type, tile.dim)});
}

void encode(const kernels::Kernels& kernels, const TileLayout& tile, const kernels::CellPlace& place,
            const float* values) {
  std::byte row[kMaxRowBytes];
  to_row(kernels, tile, values, row);
  kernels::store_cell(place, row);
}

void decode(const kernels::Kernels& kernels, const TileLayout& tile, const kernels::CellPlace& place,
            float* values) {
  std::byte row[kMaxRowBytes];
  kernels::load_cell(place, row);
  decode_row(tile.type, {row, row_bytes(tile.type, tile.dim)}, {values, tile.dim});
  if (tile.hadamard != 0) kernels.hadamard(values, tile.hadamard, tile.dim / tile.hadamard);
}

void copy(const kernels::CellPlace& from, const kernels::CellPlace& to) {
  std::byte row[kMaxRowBytes];
  kernels::load_cell(from, row);
  kernels::store_cell(to, row);
}

}  // namespace

void encode_k(const kernels::Kernels& kernels, const LayerPlace& place, CellHead to, const float* values) {
  encode(kernels, place.k, k_at(place, to), values);
}

void decode_k(const kernels::Kernels& kernels, const LayerPlace& place, CellHead from, float* values) {
  decode(kernels, place.k, k_at(place, from), values);
}

void encode_v(const kernels::Kernels& kernels, const LayerPlace& place, CellHead to, const float* values) {
  encode(kernels, place.v, v_at(place, to), values);
}

void decode_v(const kernels::Kernels& kernels, const LayerPlace& place, CellHead from, float* values) {
  if (!place.v_view_of_k) return decode(kernels, place.v, v_at(place, from), values);
  float k[kernels::kMaxHeadDim];
  decode_k(kernels, place, from, k);
  std::copy_n(k, place.v.dim, values);
}

void load_k(const LayerPlace& place, CellHead from, std::byte* row) {
  kernels::load_cell(k_at(place, from), row);
}

void store_k(const LayerPlace& place, CellHead to, const std::byte* row) {
  kernels::store_cell(k_at(place, to), row);
}

void load_v(const LayerPlace& place, CellHead from, std::byte* row) {
  kernels::load_cell(v_at(place, from), row);
}

void store_v(const LayerPlace& place, CellHead to, const std::byte* row) {
  kernels::store_cell(v_at(place, to), row);
}

void encode_k_row(const kernels::Kernels& kernels, const LayerPlace& place, const float* values,
                  std::byte* row) {
  to_row(kernels, place.k, values, row);
}

void copy_k(const LayerPlace& place, CellHead from, CellHead to) { copy(k_at(place, from), k_at(place, to)); }

void copy_v(const LayerPlace& place, CellHead from, CellHead to) {
  if (!place.v_view_of_k) copy(v_at(place, from), v_at(place, to));
}

void poison(const LayerPlace& place, CellHead cell) {
  std::byte row[kMaxRowBytes];
  std::memset(row, 0xff, sizeof row);  // NaN as a float of any width, and as the scale of any block
  kernels::store_cell(k_at(place, cell), row);
  if (!place.v_view_of_k) kernels::store_cell(v_at(place, cell), row);
}

}  // namespace pykv::cpu
