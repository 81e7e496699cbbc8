#include "backend_cpu/kv_cells.h"

#include <algorithm>

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

void encode(const kernels::CellPlace& place, const float* values) {
  std::byte row[kMaxRowBytes];
  encode_row(place.type, {values, place.dim}, {row, row_bytes(place.type, place.dim)});
  kernels::store_cell(place, row);
}

void decode(const kernels::CellPlace& place, float* values) {
  std::byte row[kMaxRowBytes];
  kernels::load_cell(place, row);
  decode_row(place.type, {row, row_bytes(place.type, place.dim)}, {values, place.dim});
}

void copy(const kernels::CellPlace& from, const kernels::CellPlace& to) {
  std::byte row[kMaxRowBytes];
  kernels::load_cell(from, row);
  kernels::store_cell(to, row);
}

}  // namespace

void encode_k(const LayerPlace& place, CellHead to, const float* values) { encode(k_at(place, to), values); }

void decode_k(const LayerPlace& place, CellHead from, float* values) { decode(k_at(place, from), values); }

void encode_v(const LayerPlace& place, CellHead to, const float* values) { encode(v_at(place, to), values); }

void decode_v(const LayerPlace& place, CellHead from, float* values) {
  if (!place.v_view_of_k) return decode(v_at(place, from), values);
  float k[kernels::kMaxHeadDim];
  decode_k(place, from, k);
  std::copy_n(k, place.v.dim, values);
}

void copy_k(const LayerPlace& place, CellHead from, CellHead to) { copy(k_at(place, from), k_at(place, to)); }

void copy_v(const LayerPlace& place, CellHead from, CellHead to) {
  if (!place.v_view_of_k) copy(v_at(place, from), v_at(place, to));
}

}  // namespace pykv::cpu
