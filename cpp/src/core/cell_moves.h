// Floor 1, internal. Cells on their way to other cells of the pool.
//
// Cells move in units. What depends on cells that lie side by side (a piece of a run list)
// refuses the units that would tear it apart; a refused unit stays where it is.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "pykv/types.h"

namespace pykv {

class CellMoves {
 public:
  struct Move {
    CellSpan from;  // inside one block
    CellIndex to;   // first of as many cells, inside one block
    std::uint32_t unit;
  };

  explicit CellMoves(std::uint32_t blocks) : tables_(blocks, kNone) {}

  void begin_unit() { is_refused_.push_back(0); }
  // Adds cells to the unit begun last. None may be in a move already.
  void add(CellSpan from, CellIndex to);

  bool is_empty() const { return moves_.empty(); }
  bool touches(BlockIndex block) const { return tables_[block] != kNone; }  // moves cells out of it
  bool has(CellIndex cell) const;                                           // also if it was refused
  CellIndex target(CellIndex cell) const;                                   // the cell itself if it stays

  // Whether the cells, of one block, lie side by side afterwards too.
  bool keeps_together(CellSpan cells) const;
  // Refuses units until every one of `pieces`, each inside one block, stays in one piece. Returns
  // those that would have been torn apart.
  std::vector<CellSpan> respect(std::span<const CellSpan> pieces);

  // Calls visit(const Move&) for those that are not refused.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Move& move : moves_)
      if (is_refused_[move.unit] == 0) visit(move);
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t move_of(CellIndex cell) const;  // index, kNone: in none

  std::vector<Move> moves_;
  std::vector<std::uint8_t> is_refused_;  // by unit
  std::vector<std::uint32_t> tables_;     // block -> number of its table
  std::vector<std::uint32_t> move_ids_;   // tables: cell of the block -> move
};

}  // namespace pykv
