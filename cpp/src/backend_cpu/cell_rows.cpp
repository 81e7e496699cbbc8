// Rows of the cache: written, read, copied, moved to other positions.
#include "backend_cpu/cell_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

namespace pykv {
namespace cpu {

void check_cells(const char* method, const Pool& pool, std::span<const CellIndex> cells) {
  for (const CellIndex cell : cells) check_cell(method, pool, cell);
}

// Two rows for one cell would race.
void check_distinct(const char* method, std::span<const CellIndex> cells, std::vector<CellIndex>& sorted) {
  const auto not_ascending = [](CellIndex a, CellIndex b) { return a >= b; };
  if (std::adjacent_find(cells.begin(), cells.end(), not_ascending) == cells.end()) return;
  sorted.assign(cells.begin(), cells.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse(method, "cell " + std::to_string(*twice) + " is named twice");
}

void check_stored(const char* method, std::uint32_t layer, const LayerPlace& place) {
  if (place.kv_from_layer)
    refuse(method, "layer " + std::to_string(layer) + " stores no KV; it reads that of layer " +
                       std::to_string(*place.kv_from_layer) + ", name that one");
}

KeyMoves::KeyMoves(const char* method, const LayerPlace& place, const RopeParams& rope,
                   std::span<const Pos> deltas, std::size_t rows)
    : rope_(rope), deltas_(deltas), distinct_(deltas.begin(), deltas.end()) {
  validate(rope, place.k.dim, "[Backend." + std::string(method) + "] ");
  if (place.v_view_of_k && rope.dims != 0 && rope.offset < place.v.dim)
    refuse(method, "the rope turns element " + std::to_string(rope.offset) + " of K, which is one of the " +
                       std::to_string(place.v.dim) + " elements of V");
  if (deltas.size() != rows)
    refuse(method, std::to_string(deltas.size()) + " deltas for " + std::to_string(rows) + " cells");
  std::sort(distinct_.begin(), distinct_.end());
  distinct_.erase(std::unique(distinct_.begin(), distinct_.end()), distinct_.end());
  fill_cos_sin(rope, distinct_, cos_sin_);
}

void KeyMoves::turn(std::size_t i, float* head) const {
  const auto which = std::lower_bound(distinct_.begin(), distinct_.end(), deltas_[i]) - distinct_.begin();
  const HeadTurn turn_head(rope_);
  turn_head(head, cos_sin_.data() + static_cast<std::size_t>(which) * rope_.dims);
}

}  // namespace cpu

namespace {

using cpu::CellHead;
using cpu::head_at;
using cpu::LayerPlace;
using cpu::Pool;
using cpu::refuse;

// Each of `to` once; none is read by another row than the one that writes it.
void check_move(const char* method, const Pool& pool, std::span<const CellIndex> from,
                std::span<const CellIndex> to) {
  if (from.size() != to.size())
    refuse(method, std::to_string(from.size()) + " cells to read, " + std::to_string(to.size()) +
                       " to write; they must be as many");
  cpu::check_cells(method, pool, from);
  cpu::check_cells(method, pool, to);
  std::vector<CellIndex> written;
  cpu::check_distinct(method, to, written);
  written.assign(to.begin(), to.end());
  std::sort(written.begin(), written.end());
  for (std::size_t i = 0; i < from.size(); ++i)
    if (from[i] != to[i] && std::binary_search(written.begin(), written.end(), from[i]))
      refuse(method, "cell " + std::to_string(from[i]) + " is read for cell " + std::to_string(to[i]) +
                         " and is written too; copy in two calls");
}

// The moves of each layer. Layers that turn alike share a table.
class LayerMoves {
 public:
  LayerMoves(const Pool& pool, std::span<const RopeParams* const> ropes, std::span<const Pos> deltas,
             std::size_t rows)
      : of_layer_(ropes.size()) {
    if (ropes.size() != pool.layout.layer_count())
      refuse("rewrite_k", std::to_string(ropes.size()) + " ropes; the pool has " +
                              std::to_string(pool.layout.layer_count()) + " layers");
    distinct_.reserve(ropes.size());
    for (std::uint32_t layer = 0; layer < ropes.size(); ++layer) {
      if (ropes[layer] == nullptr) continue;
      const LayerPlace& place = pool.layout.place(layer);
      cpu::check_stored("rewrite_k", layer, place);
      for (std::uint32_t i = 0; i < layer && of_layer_[layer] == nullptr; ++i) {
        const LayerPlace& other = pool.layout.place(i);
        if (ropes[i] == ropes[layer] && other.k.dim == place.k.dim && !other.v_view_of_k &&
            !place.v_view_of_k)
          of_layer_[layer] = of_layer_[i];
      }
      if (of_layer_[layer] == nullptr)
        of_layer_[layer] = &distinct_.emplace_back("rewrite_k", place, *ropes[layer], deltas, rows);
    }
  }
  const cpu::KeyMoves& of(std::uint32_t layer) const { return *of_layer_[layer]; }

 private:
  std::vector<cpu::KeyMoves> distinct_;
  std::vector<const cpu::KeyMoves*> of_layer_;
};

void move_k(const kernels::Kernels& kernels, const LayerPlace& place, CellHead from, CellHead to,
            const cpu::KeyMoves& moves, std::size_t row) {
  if (moves.stays(row)) return copy_k(place, from, to);
  float k[kernels::kMaxHeadDim];
  decode_k(kernels, place, from, k);
  moves.turn(row, k);
  encode_k(kernels, place, to, k);
}

}  // namespace

void Backend::poison(PoolId id, BlockIndex block, std::uint64_t cells) {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("poison", id);
  const CellIndex first = block * kBlockCells;
  cpu::check_cell("poison", pool, first);
  for (; cells != 0; cells &= cells - 1) {
    const CellIndex cell = first + static_cast<std::uint32_t>(std::countr_zero(cells));
    for (std::uint32_t layer = 0; layer < pool.layout.layer_count(); ++layer) {
      const LayerPlace& place = pool.layout.place(layer);
      for (std::uint32_t head = 0; head < place.kv_heads; ++head)
        cpu::poison(place, head_at(pool, cell, head));
    }
  }
}

void Backend::write_kv(PoolId id, std::uint32_t layer, Rows k, Rows v, std::span<const CellIndex> cells) {
  const auto call = impl_->enter_rows();
  Pool& pool = impl_->pool("write_kv", id);
  const LayerPlace& place = impl_->layer("write_kv", pool, layer);
  cpu::check_stored("write_kv", layer, place);
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
  cpu::check_cells("write_kv", pool, cells);
  cpu::check_distinct("write_kv", cells, impl_->sorted_cells);
  const std::array both{k, v};
  const std::span<const Rows> rows = std::span(both).first(place.v_view_of_k ? 1 : 2);
  cpu::RowProgram& program = impl_->program;
  if (!program.takes({rows}) || !program.can_keep(cells)) impl_->run_program();
  const std::span<const CellIndex> kept = program.keep(cells);
  program.add(
      {rows}, 4,
      [=, kernels = impl_->kernels, pool = &pool, place = &place](cpu::RowRange range, std::uint32_t) {
        for (std::uint32_t i = range.begin; i < range.end; ++i)
          for (std::uint32_t head = 0; head < place->kv_heads; ++head) {
            const CellHead to = head_at(*pool, kept[i], head);
            encode_k(*kernels, *place, to, keys.row(i) + head * place->k.dim);
            if (!place->v_view_of_k) encode_v(*kernels, *place, to, values.row(i) + head * place->v.dim);
          }
      });
}

void Backend::read_kv(PoolId id, std::uint32_t layer, std::span<const CellIndex> cells, std::span<float> k,
                      std::span<float> v, const KeyMove& move) const {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("read_kv", id);
  const LayerPlace& place = impl_->layer("read_kv", pool, layer);
  const std::size_t k_width = std::size_t{place.kv_heads} * place.k.dim;
  const std::size_t v_width = std::size_t{place.kv_heads} * place.v.dim;
  if (k.size() != cells.size() * k_width || v.size() != cells.size() * v_width)
    refuse("read_kv", "room for " + std::to_string(k.size()) + " and " + std::to_string(v.size()) +
                          " values; " + std::to_string(cells.size()) + " cells have " +
                          std::to_string(k_width) + " and " + std::to_string(v_width) + " each");
  cpu::check_cells("read_kv", pool, cells);
  std::optional<cpu::KeyMoves> moves;
  if (!move.deltas.empty()) moves.emplace("read_kv", place, move.rope, move.deltas, cells.size());
  for (std::size_t i = 0; i < cells.size(); ++i)
    for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
      const CellHead from = head_at(pool, cells[i], head);
      float* const values = k.data() + i * k_width + std::size_t{head} * place.k.dim;
      decode_k(*impl_->kernels, place, from, values);
      if (moves && !moves->stays(i)) moves->turn(i, values);
      decode_v(*impl_->kernels, place, from, v.data() + i * v_width + std::size_t{head} * place.v.dim);
    }
}

void Backend::rewrite_k(PoolId id, std::span<const CellIndex> from, std::span<const CellIndex> to,
                        std::span<const Pos> deltas, std::span<const RopeParams* const> ropes) {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("rewrite_k", id);
  check_move("rewrite_k", pool, from, to);
  const LayerMoves moves(pool, ropes, deltas, from.size());
  cpu::for_rows(*impl_->threads, from.size(), [&](std::uint32_t i) {
    for (std::uint32_t layer = 0; layer < ropes.size(); ++layer) {
      if (ropes[layer] == nullptr) continue;
      const LayerPlace& place = pool.layout.place(layer);
      for (std::uint32_t head = 0; head < place.kv_heads; ++head)
        move_k(*impl_->kernels, place, head_at(pool, from[i], head), head_at(pool, to[i], head),
               moves.of(layer), i);
    }
  });
}

void Backend::copy_cells(PoolId id, std::span<const CellIndex> from, std::span<const CellIndex> to) {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("copy_cells", id);
  check_move("copy_cells", pool, from, to);
  cpu::for_rows(*impl_->threads, from.size(), [&](std::uint32_t i) {
    if (from[i] == to[i]) return;
    for (std::uint32_t layer = 0; layer < pool.layout.layer_count(); ++layer) {
      const LayerPlace& place = pool.layout.place(layer);
      if (place.kv_from_layer) continue;
      for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
        copy_k(place, head_at(pool, from[i], head), head_at(pool, to[i], head));
        copy_v(place, head_at(pool, from[i], head), head_at(pool, to[i], head));
      }
    }
  });
}

}  // namespace pykv
