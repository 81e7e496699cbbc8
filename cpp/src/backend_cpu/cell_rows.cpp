// Rows of the cache: written, read, copied, moved to other positions.
#include <algorithm>

#include "backend_cpu/impl.h"
#include "backend_cpu/kv_cells.h"

namespace pykv {
namespace {

using cpu::CellHead;
using cpu::LayerPlace;
using cpu::Pool;
using cpu::refuse;

constexpr std::uint32_t kRowsPerTask = 16;

void check_cells(const char* method, const Pool& pool, std::span<const CellIndex> cells) {
  for (const CellIndex cell : cells) cpu::check_cell(method, pool, cell);
}

// Two rows for one cell would race.
void check_distinct(const char* method, std::span<const CellIndex> cells) {
  const auto not_ascending = [](CellIndex a, CellIndex b) { return a >= b; };
  if (std::adjacent_find(cells.begin(), cells.end(), not_ascending) == cells.end()) return;
  std::vector<CellIndex> sorted(cells.begin(), cells.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse(method, "cell " + std::to_string(*twice) + " is named twice");
}

// Each of `to` once; none is read by another row than the one that writes it.
void check_move(const char* method, const Pool& pool, std::span<const CellIndex> from,
                std::span<const CellIndex> to) {
  if (from.size() != to.size())
    refuse(method, std::to_string(from.size()) + " cells to read, " + std::to_string(to.size()) +
                       " to write; they must be as many");
  check_cells(method, pool, from);
  check_cells(method, pool, to);
  check_distinct(method, to);
  std::vector<CellIndex> written(to.begin(), to.end());
  std::sort(written.begin(), written.end());
  for (std::size_t i = 0; i < from.size(); ++i)
    if (from[i] != to[i] && std::binary_search(written.begin(), written.end(), from[i]))
      refuse(method, "cell " + std::to_string(from[i]) + " is read for cell " + std::to_string(to[i]) +
                         " and is written too; copy in two calls");
}

void check_stored(const char* method, std::uint32_t layer, const LayerPlace& place) {
  if (place.kv_from_layer)
    refuse(method, "layer " + std::to_string(layer) + " stores no KV; it reads that of layer " +
                       std::to_string(*place.kv_from_layer) + ", name that one");
}

CellHead at(const Pool& pool, CellIndex cell, std::uint32_t head) {
  return {pool.block(cell / kBlockCells), cell % kBlockCells, head};
}

// body(i) for every row, some at a time.
template <class Body>
void for_rows(cpu::ThreadPool& threads, std::size_t rows, Body&& body) {
  const auto count = static_cast<std::uint32_t>(rows);
  threads.run((count + kRowsPerTask - 1) / kRowsPerTask, [&](std::uint32_t task, std::uint32_t) {
    const std::uint32_t end = std::min(count, (task + 1) * kRowsPerTask);
    for (std::uint32_t i = task * kRowsPerTask; i < end; ++i) body(i);
  });
}

}  // namespace

void Backend::write_kv(PoolId id, std::uint32_t layer, Rows k, Rows v, std::span<const CellIndex> cells) {
  const auto call = impl_->enter();
  Pool& pool = impl_->pool("write_kv", id);
  const LayerPlace& place = impl_->layer("write_kv", pool, layer);
  check_stored("write_kv", layer, place);
  const cpu::RowView keys = impl_->view("write_kv", "k", k);
  cpu::check_width("write_kv", "k", keys, std::uint64_t{place.kv_heads} * place.k.dim);
  cpu::check_count("write_kv", "k", keys, cells.size());
  cpu::RowView values;
  if (place.v_view_of_k) {
    if (v.width != 0)
      refuse("write_kv", "layer " + std::to_string(layer) + " has V as a view of K; give none");
  } else {
    values = impl_->view("write_kv", "v", v);
    cpu::check_width("write_kv", "v", values, std::uint64_t{place.kv_heads} * place.v.dim);
    cpu::check_count("write_kv", "v", values, cells.size());
  }
  check_cells("write_kv", pool, cells);
  check_distinct("write_kv", cells);
  for_rows(*impl_->threads, cells.size(), [&](std::uint32_t i) {
    for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
      const CellHead to = at(pool, cells[i], head);
      encode_k(place, to, keys.row(i) + head * place.k.dim);
      if (!place.v_view_of_k) encode_v(place, to, values.row(i) + head * place.v.dim);
    }
  });
}

void Backend::read_kv(PoolId id, std::uint32_t layer, std::span<const CellIndex> cells, std::span<float> k,
                      std::span<float> v) const {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("read_kv", id);
  const LayerPlace& place = impl_->layer("read_kv", pool, layer);
  const std::size_t k_width = std::size_t{place.kv_heads} * place.k.dim;
  const std::size_t v_width = std::size_t{place.kv_heads} * place.v.dim;
  if (k.size() != cells.size() * k_width || v.size() != cells.size() * v_width)
    refuse("read_kv", "room for " + std::to_string(k.size()) + " and " + std::to_string(v.size()) +
                          " values; " + std::to_string(cells.size()) + " cells have " +
                          std::to_string(k_width) + " and " + std::to_string(v_width) + " each");
  check_cells("read_kv", pool, cells);
  for (std::size_t i = 0; i < cells.size(); ++i)
    for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
      const CellHead from = at(pool, cells[i], head);
      decode_k(place, from, k.data() + i * k_width + std::size_t{head} * place.k.dim);
      decode_v(place, from, v.data() + i * v_width + std::size_t{head} * place.v.dim);
    }
}

void Backend::rewrite_k(PoolId id, std::uint32_t layer, std::span<const CellIndex> from,
                        std::span<const CellIndex> to, std::span<const Pos> deltas, const RopeParams& rope) {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("rewrite_k", id);
  const LayerPlace& place = impl_->layer("rewrite_k", pool, layer);
  check_stored("rewrite_k", layer, place);
  validate(rope, place.k.dim, "[Backend.rewrite_k] ");
  if (place.v_view_of_k && rope.dims != 0 && rope.offset < place.v.dim)
    refuse("rewrite_k", "the rope turns element " + std::to_string(rope.offset) +
                            " of K, which is one of the " + std::to_string(place.v.dim) + " elements of V");
  check_move("rewrite_k", pool, from, to);
  if (deltas.size() != from.size())
    refuse("rewrite_k",
           std::to_string(deltas.size()) + " deltas for " + std::to_string(from.size()) + " cells");
  std::vector<Pos> distinct(deltas.begin(), deltas.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const std::vector<float> table = cpu::cos_sin(rope, distinct);
  for_rows(*impl_->threads, from.size(), [&](std::uint32_t i) {
    const auto which = std::lower_bound(distinct.begin(), distinct.end(), deltas[i]) - distinct.begin();
    for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
      const CellHead source = at(pool, from[i], head);
      const CellHead target = at(pool, to[i], head);
      if (deltas[i] == 0 || rope.dims == 0) {
        copy_k(place, source, target);
        continue;
      }
      float k[kernels::kMaxHeadDim];
      decode_k(place, source, k);
      cpu::rotate_head(k, rope, table.data() + static_cast<std::size_t>(which) * rope.dims);
      encode_k(place, target, k);
    }
  });
}

void Backend::copy_cells(PoolId id, std::span<const CellIndex> from, std::span<const CellIndex> to) {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("copy_cells", id);
  check_move("copy_cells", pool, from, to);
  for_rows(*impl_->threads, from.size(), [&](std::uint32_t i) {
    if (from[i] == to[i]) return;
    for (std::uint32_t layer = 0; layer < pool.layout.layer_count(); ++layer) {
      const LayerPlace& place = pool.layout.place(layer);
      if (place.kv_from_layer) continue;
      for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
        copy_k(place, at(pool, from[i], head), at(pool, to[i], head));
        copy_v(place, at(pool, from[i], head), at(pool, to[i], head));
      }
    }
  });
}

}  // namespace pykv
