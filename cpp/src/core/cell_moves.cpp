#include "core/cell_moves.h"

#include <algorithm>

namespace pykv {

void CellMoves::add(CellSpan from, CellIndex to) {
  std::uint32_t& table = tables_[from.begin / kBlockCells];
  if (table == kNone) {
    const auto number = static_cast<std::uint32_t>(move_ids_.size() / kBlockCells);
    move_ids_.resize(move_ids_.size() + kBlockCells, kNone);
    table = number;
  }
  const auto id = static_cast<std::uint32_t>(moves_.size());
  moves_.push_back({from, to, static_cast<std::uint32_t>(is_refused_.size() - 1)});
  const std::size_t first = std::size_t{table} * kBlockCells + from.begin % kBlockCells;
  std::fill_n(move_ids_.begin() + static_cast<std::ptrdiff_t>(first), from.length, id);
}

std::uint32_t CellMoves::move_of(CellIndex cell) const {
  const std::uint32_t table = tables_[cell / kBlockCells];
  return table == kNone ? kNone : move_ids_[std::size_t{table} * kBlockCells + cell % kBlockCells];
}

bool CellMoves::has(CellIndex cell) const { return move_of(cell) != kNone; }

CellIndex CellMoves::target(CellIndex cell) const {
  const std::uint32_t id = move_of(cell);
  if (id == kNone || is_refused_[moves_[id].unit] != 0) return cell;
  return moves_[id].to + (cell - moves_[id].from.begin);
}

bool CellMoves::keeps_together(CellSpan cells) const {
  const CellIndex first = target(cells.begin);
  if (first / kBlockCells != (first + cells.length - 1) / kBlockCells) return false;
  for (std::uint32_t i = 1; i < cells.length; ++i)
    if (target(cells.begin + i) != first + i) return false;
  return true;
}

std::vector<CellSpan> CellMoves::respect(std::span<const CellSpan> pieces) {
  std::vector<CellSpan> torn;
  for (bool again = true; again;) {
    again = false;
    for (const CellSpan piece : pieces) {
      if (keeps_together(piece)) continue;
      again = true;
      torn.push_back(piece);
      for (CellIndex cell = piece.begin; cell < piece.begin + piece.length; ++cell)
        if (const std::uint32_t id = move_of(cell); id != kNone) is_refused_[moves_[id].unit] = 1;
    }
  }
  return torn;
}

}  // namespace pykv
