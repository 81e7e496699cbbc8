// Rows of the cache as they are stored, in GGUF's row layout.
#include <algorithm>

#include "backend_cpu/cell_rows.h"

namespace pykv {
namespace {

using cpu::CellHead;
using cpu::LayerPlace;
using cpu::Pool;

struct RowSizes {  // bytes of a head, of all heads
  std::size_t k_head, v_head, k, v;
};

RowSizes sizes_of(const LayerPlace& place) {
  const std::size_t k = row_bytes(place.k.type, place.k.dim);
  const std::size_t v = place.v_view_of_k ? 0 : row_bytes(place.v.type, place.v.dim);
  return {k, v, place.kv_heads * k, place.kv_heads * v};
}

void check_sizes(const char* method, const RowSizes& row, std::size_t rows, std::size_t k, std::size_t v) {
  if (k != rows * row.k || v != rows * row.v)
    cpu::refuse(method, std::to_string(k) + " and " + std::to_string(v) + " bytes of K and V; " +
                            std::to_string(rows) + " cells of the layer have " +
                            std::to_string(rows * row.k) + " and " + std::to_string(rows * row.v));
}

}  // namespace

void Backend::export_rows(PoolId id, std::uint32_t layer, std::span<const CellIndex> cells,
                          const KeyMove& move, std::span<std::byte> k, std::span<std::byte> v) const {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("export_rows", id);
  const LayerPlace& place = impl_->layer("export_rows", pool, layer);
  cpu::check_stored("export_rows", layer, place);
  cpu::check_cells("export_rows", pool, cells);
  const RowSizes row = sizes_of(place);
  check_sizes("export_rows", row, cells.size(), k.size(), v.size());
  const cpu::KeyMoves moves("export_rows", place, move.rope, move.deltas, cells.size());
  cpu::for_rows(*impl_->threads, cells.size(), [&](std::uint32_t i) {
    for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
      const CellHead from = cpu::head_at(pool, cells[i], head);
      std::byte* const to = k.data() + i * row.k + head * row.k_head;
      if (moves.stays(i)) {
        load_k(place, from, to);
      } else {
        float values[kernels::kMaxHeadDim];
        decode_k(*impl_->kernels, place, from, values);
        moves.turn(i, values);
        cpu::encode_k_row(*impl_->kernels, place, values, to);
      }
      if (!place.v_view_of_k) load_v(place, from, v.data() + i * row.v + head * row.v_head);
    }
  });
}

void Backend::import_rows(PoolId id, std::uint32_t layer, std::span<const CellIndex> cells,
                          std::span<const std::byte> k, std::span<const std::byte> v) {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("import_rows", id);
  const LayerPlace& place = impl_->layer("import_rows", pool, layer);
  cpu::check_stored("import_rows", layer, place);
  cpu::check_cells("import_rows", pool, cells);
  std::vector<CellIndex> sorted;
  cpu::check_distinct("import_rows", cells, sorted);
  const RowSizes row = sizes_of(place);
  check_sizes("import_rows", row, cells.size(), k.size(), v.size());
  cpu::for_rows(*impl_->threads, cells.size(), [&](std::uint32_t i) {
    for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
      const CellHead to = cpu::head_at(pool, cells[i], head);
      store_k(place, to, k.data() + i * row.k + head * row.k_head);
      if (!place.v_view_of_k) store_v(place, to, v.data() + i * row.v + head * row.v_head);
    }
  });
}

}  // namespace pykv
