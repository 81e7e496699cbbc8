// Floor 2. Calls on rows of the cache: what they check, how they are shared out to threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "backend_cpu/impl.h"
#include "backend_cpu/kv_cells.h"

namespace pykv::cpu {

// Each throws InvalidArgument.
void check_cells(const char* method, const Pool& pool, std::span<const CellIndex> cells);
// `sorted` is room for them.
void check_distinct(const char* method, std::span<const CellIndex> cells, std::vector<CellIndex>& sorted);
void check_stored(const char* method, std::uint32_t layer, const LayerPlace& place);

inline CellHead head_at(const Pool& pool, CellIndex cell, std::uint32_t head) {
  return {pool.block(cell / kBlockCells), cell % kBlockCells, head};
}

// body(i) for every row, some at a time.
template <class Body>
void for_rows(ThreadPool& threads, std::size_t rows, Body&& body) {
  constexpr std::uint32_t kRowsPerTask = 16;
  const auto count = static_cast<std::uint32_t>(rows);
  threads.run((count + kRowsPerTask - 1) / kRowsPerTask, [&](std::uint32_t task, std::uint32_t) {
    const std::uint32_t end = std::min(count, (task + 1) * kRowsPerTask);
    for (std::uint32_t i = task * kRowsPerTask; i < end; ++i) body(i);
  });
}

// How K of some rows is moved to other positions: each by its delta.
class KeyMoves {
 public:
  // Throws InvalidArgument for a rope that does not fit the layer or the number of deltas.
  KeyMoves(const char* method, const LayerPlace& place, const RopeParams& rope, std::span<const Pos> deltas,
           std::size_t rows);

  // Whether row i stays as it is, byte for byte.
  bool stays(std::size_t i) const { return deltas_[i] == 0 || rope_.dims == 0; }
  void turn(std::size_t i, float* head) const;

 private:
  const RopeParams& rope_;
  std::span<const Pos> deltas_;
  std::vector<Pos> distinct_;  // ascending
  std::vector<float> cos_sin_;
};

}  // namespace pykv::cpu
