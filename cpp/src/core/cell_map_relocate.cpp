// Cells that move: holders and flags go with them.
#include <string>

#include "core/cell_bits.h"
#include "core/cell_moves.h"
#include "pykv/cell_map.h"
#include "pykv/errors.h"

namespace pykv {

void CellMap::relocate(const CellMoves& moves) {
  bool ok = true;
  moves.for_each([&](const CellMoves::Move& move) {
    const std::uint64_t from = bits::stretch(move.from.begin % kBlockCells, move.from.length);
    const std::uint64_t to = bits::stretch(move.to % kBlockCells, move.from.length);
    ok = ok && (blocks_[move.from.begin / kBlockCells].free & from) == 0 &&
         (blocks_[move.to / kBlockCells].free & to) == to;
  });
  if (!ok) throw IntegrityError("[CellMap.relocate] a cell to be moved is free, or its target is not");
  moves.for_each([&](const CellMoves::Move& move) { relocate(move.from, move.to); });
}

void CellMap::relocate(CellSpan from, CellIndex to) {
  const BlockIndex source = from.begin / kBlockCells, target = to / kBlockCells;
  const std::uint32_t begin = from.begin % kBlockCells, target_begin = to % kBlockCells;
  const std::uint64_t leaving = bits::stretch(begin, from.length);
  const std::uint64_t arriving = bits::stretch(target_begin, from.length);
  Block& old_block = blocks_[source];
  Block& new_block = blocks_[target];
  split_around(source, leaving);
  for (std::uint64_t rest = old_block.start & leaving; rest != 0; rest &= rest - 1) {
    const std::uint32_t offset = bits::lowest(rest);
    words_[std::size_t{target} * kBlockCells + target_begin + (offset - begin)] =
        words_[std::size_t{source} * kBlockCells + offset];
  }
  const std::uint64_t starts = (old_block.start & leaving) >> begin << target_begin;
  if (new_block.free == bits::kAll) --counts_.free_blocks;
  new_block.free &= ~arriving;
  new_block.start |= starts;
  old_block.free |= leaving;
  old_block.start &= ~leaving;
  if (old_block.free == bits::kAll) ++counts_.free_blocks;
  merge_around(target, arriving);
  refresh(source);
  refresh(target);
  if (freed_call_) freed_call_(source, leaving);
}

}  // namespace pykv
