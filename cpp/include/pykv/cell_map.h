// Floor 1. Ownership of cells: which are free, and who holds the others.
//
// An *extent* is a stretch of consecutive cells of one block with the same holders,
// reference-counted as a whole. Extents are kept as run-length coding: per block one
// word of boundaries, and a count where a boundary lies. Therefore
//   - sharing a part of somebody's cells splits extents without touching any run list,
//   - a cell is free exactly when nobody holds it; nothing is retained "by neighbours",
//   - adding or dropping a holder costs O(extents touched), at most one per 64 cells
//     when sharing follows block boundaries.
// A holder is a run of a sequence (counted) or the prefix tree (one flag: a cell is
// in at most one tree node).
//
// A *lease* marks the rest of a growing sequence's block: still free, counted as free,
// but handed to others only when no other cells are left. A block has one lease at
// most; a sequence that had to take cells of another's lease leaves it where it is.
//
// Invariants (check_integrity): free and held cells partition the pool; a boundary
// lies exactly where a held cell starts a block, follows a free cell, or has other
// holders than the cell before it; counters equal a recount; a lease names a block
// with at least one free cell.
// Threads: none of its own; externally locked. Cost: stated per call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "pykv/types.h"

namespace pykv {

// What one sequence wants in a step.
struct CellRequest {
  SeqId seq;
  std::uint32_t cells = 0;
  std::optional<CellIndex> after;  // its last cell, to continue next to it
};

// Cells found for several requests. Kept between searches: one allocates only where it is
// larger than those before.
class FoundCells {
 public:
  // Of request i, in token order; neighbours are merged.
  std::span<const CellSpan> of(std::size_t i) const {
    return std::span(spans_).subspan(begin_[i], begin_[i + 1] - begin_[i]);
  }

 private:
  friend class CellFinder;
  struct Wanted {
    CellRequest request;
    std::uint32_t left = 0;      // cells still to be found
    std::uint32_t last = kNone;  // its last one in `given_`
    std::uint32_t sorted = 0;    // those that are in `spans_`
  };
  struct Given {
    CellSpan cells;
    std::uint32_t request = 0;
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::vector<CellSpan> spans_;       // by request
  std::vector<std::uint32_t> begin_;  // request -> its first span, and one entry more
  // Of the search: cells given so far, over a map that stays as it is.
  std::vector<Wanted> wanted_;
  std::vector<Given> given_;          // in the order in which they were found
  std::vector<std::uint64_t> masks_;  // of `given_`, per block; 0 but for the next
  std::vector<BlockIndex> touched_;
};

struct CellCounts {
  std::uint32_t capacity = 0;  // active + idle + free
  std::uint32_t active = 0;    // held by at least one sequence
  std::uint32_t idle = 0;      // held by the prefix tree only
  std::uint32_t free = 0;
  std::uint32_t free_blocks = 0;  // blocks without any held cell
};

class CellMoves;  // cpp/src/core/cell_moves.h

class CellMap {
 public:
  explicit CellMap(std::uint32_t blocks);  // 1 … 2^26 - 1; throws InvalidArgument

  // Finds cells for all requests or none (false: fewer than the sum are free). Order of
  // preference: the sequence's own lease, whole free blocks (lowest first, next to the
  // previous one if possible), holes of unleased blocks, other sequences' leases. O(blocks
  // touched), plus O(words of the free-block bitmap) when searching. Throws InvalidArgument
  // if `after` is not a cell.
  bool find(std::span<const CellRequest> requests, FoundCells& found) const;

  // Takes free cells for `seq` with one sequence holder; moves its lease to the rest
  // of the block of the last cell, unless another sequence has that one. O(blocks).
  // The span must be free (throws IntegrityError, as all changes below do when the
  // cells are not as they must be; nothing is changed then).
  void take(SeqId seq, CellSpan cells);

  // Adds or drops one sequence holder. Cells whose last holder goes become free.
  // The second form takes any cells of one block, bit i for its cell i.
  void add_holder(CellSpan cells);
  void add_holder(BlockIndex block, std::uint64_t cells);
  void drop_holder(CellSpan cells);
  void drop_holder(BlockIndex block, std::uint64_t cells);

  // Sets or clears the tree's flag. Cells without any holder become free.
  void set_in_tree(CellSpan cells);
  void clear_in_tree(CellSpan cells);

  // Block whose rest is kept for `seq`, if there is one; `likely` is looked at first. O(1).
  std::optional<BlockIndex> lease(SeqId seq, BlockIndex likely) const;
  // `call` is told of cells of a block that become free, bit i for its cell i. It must not
  // throw, nor change the map. Empty: nobody is.
  void on_freed(std::function<void(BlockIndex block, std::uint64_t cells)> call);

  // Gives up the lease of `seq`, if it has one. O(1).
  void drop_lease(SeqId seq);
  // Makes the lease of `seq` what lease() said before cells were taken that are free again.
  // Without memory for that it has none. O(1).
  void restore_lease(SeqId seq, std::optional<BlockIndex> block) noexcept;

  // Gives what holds moved cells to their targets, which are free. Leases stay with their
  // blocks. O(cells). Needs no memory.
  void relocate(const CellMoves& moves);
  std::uint64_t free_cells(BlockIndex block) const { return blocks_[block].free; }  // bit i: cell i
  bool is_leased(BlockIndex block) const { return blocks_[block].lease != SeqId{}; }
  // Whether one run of a sequence holds the cells and nobody else. O(extents).
  bool is_private(CellSpan cells) const;

  const CellCounts& counts() const { return counts_; }
  // Asks for the memory of what will be read or changed of the cell's block.
  void fetch(CellIndex cell) const {
    __builtin_prefetch(&blocks_[cell / kBlockCells]);
    for (std::uint32_t i = 0; i < kBlockCells; i += 16)
      __builtin_prefetch(&words_[std::size_t{cell} / kBlockCells * kBlockCells + i]);
  }
  std::uint32_t holders(CellIndex cell) const;  // runs of sequences only
  bool in_tree(CellIndex cell) const;
  bool is_free(CellIndex cell) const;
  std::uint32_t shared_cells(CellSpan cells) const;  // those with several holders. O(extents)

  // Blocks without any held cell; candidates for giving memory back.
  bool block_is_free(BlockIndex block) const { return blocks_.at(block).free == ~std::uint64_t{0}; }
  std::uint32_t block_count() const { return static_cast<std::uint32_t>(blocks_.size()); }

  // Largest number of consecutive free cells. O(blocks); for statistics and tests.
  std::uint32_t largest_free_span() const;

  void check_integrity() const;  // throws IntegrityError

 private:
  friend class CellFinder;  // cell_map_find.cpp: find()
  struct Block {
    std::uint64_t free = ~std::uint64_t{0};
    std::uint64_t start = 0;  // extent boundaries; 0 on free cells
    SeqId lease{};            // 0: none
  };
  // Calls visit(block, begin, end) with the offsets of `cells` in each of its blocks.
  template <class Visit>
  void for_blocks(CellSpan cells, Visit visit) const;
  template <class Visit>
  void for_extents(CellSpan cells, Visit visit) const;
  // A change of holders: words it may be applied to, and what becomes of them (0: free).
  struct AddHolder;
  struct DropHolder;
  struct SetInTree;
  struct ClearInTree;
  template <class Change>
  void change(CellSpan cells);
  template <class Change>
  void change(BlockIndex block, std::uint64_t cells);
  template <class Change>
  [[noreturn]] void refuse(BlockIndex block, std::uint64_t cells, std::uint64_t changed);
  // Throws IntegrityError unless all `cells` are held and allowed(word) holds for them.
  template <class Allowed>
  void require(CellSpan cells, Allowed allowed, const char* message) const;
  void require_range(CellSpan cells, const char* method) const;
  void require_block(BlockIndex block, const char* method) const;
  std::uint32_t word(CellIndex cell, const char* method) const;  // 0: free
  void relocate(CellSpan from, CellIndex to);
  void split_around(BlockIndex block, std::uint64_t cells);
  void merge_around(BlockIndex block, std::uint64_t cells);
  void move_lease(SeqId seq, BlockIndex block, bool block_has_rest);
  void refresh(BlockIndex block);
  void check_block(BlockIndex block, CellCounts& recount) const;

  std::vector<Block> blocks_;
  std::vector<std::uint32_t> words_;  // valid at boundaries; holders, top bit: in tree
  CellCounts counts_;
  // Bit per block; a block with free cells is in exactly one of the three.
  std::vector<std::uint64_t> whole_free_;   // entirely free, not leased
  std::vector<std::uint64_t> partly_free_;  // some free, some held, not leased
  std::vector<std::uint64_t> leased_;
  std::unordered_map<SeqId, BlockIndex> leases_;
  std::function<void(BlockIndex block, std::uint64_t cells)> freed_call_;
};

}  // namespace pykv
