// Floor 3, private. Which cells compact() moves, and where to.
#pragma once

#include "core/cell_moves.h"
#include "pykv/cell_map.h"
#include "pykv/run_list.h"

namespace pykv {

// Moves stretches of held cells from nearly empty blocks into the holes of others, the emptiest
// block first. Blocks with a lease stay as they are: their rest is kept for who grows there.
class Evacuation {
 public:
  Evacuation(const CellMap& cells, CellMoves& moves, std::uint32_t budget);
  void run();

 private:
  struct Partly {
    BlockIndex block;
    std::uint64_t free;  // with what is planned already
  };
  struct Planned {
    CellSpan from;
    std::size_t target;  // into blocks_
    std::uint32_t offset;
  };
  bool find_holes(std::size_t source);
  bool place(CellSpan stretch, std::size_t limit);

  const CellMap& cells_;
  CellMoves& moves_;
  std::uint32_t budget_;              // cells that may still move
  std::vector<Partly> blocks_;        // fullest first
  std::vector<std::size_t> cursors_;  // by length: no hole is looked for in blocks before it
  std::vector<Planned> planned_;      // of the block looked at
};

// Puts short runs that follow each other together into whole free blocks.
class Gathering {
 public:
  // Cells of `stuck` stay.
  Gathering(const CellMap& cells, CellMoves& moves, std::uint32_t budget, std::span<const CellSpan> stuck);
  bool is_done() const { return budget_ == 0 || next_ == cells_.block_count(); }

  static bool is_worthwhile(std::size_t runs, std::uint32_t tokens);
  void add(CellSpan cells);  // the next tokens of a sequence or a node of the tree
  void end();                // nothing follows the last tokens

 private:
  void add_piece(CellSpan piece);  // inside one block
  bool can_move(CellSpan piece) const;
  bool find_block();

  const CellMap& cells_;
  CellMoves& moves_;
  std::uint32_t budget_;
  std::vector<bool> stays_;  // by cell; empty: none does
  BlockIndex next_ = 0;      // no free block below it
  std::vector<CellSpan> open_;
  std::uint32_t open_cells_ = 0;
};

}  // namespace pykv
