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
// but handed to others only when no other cells are left.
//
// Invariants (check_integrity): free and held cells partition the pool; a boundary
// lies on the first held cell after a free one and on every block start that is held;
// counters equal a recount; a lease names a block with at least one free cell.
// Threads: none of its own; externally locked. Cost: stated per call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pykv/types.h"

namespace pykv {

// What one sequence wants in a step.
struct CellRequest {
  SeqId seq;
  std::uint32_t cells = 0;
  std::optional<CellIndex> after;  // its last cell, to continue next to it
};

struct CellCounts {
  std::uint32_t capacity = 0;  // active + idle + free
  std::uint32_t active = 0;    // held by at least one sequence
  std::uint32_t idle = 0;      // held by the prefix tree only
  std::uint32_t free = 0;
};

class CellMap {
 public:
  explicit CellMap(std::uint32_t blocks);

  // Finds cells for all requests or none (nullopt: fewer than the sum are free).
  // Const: works on an overlay. Order of preference: the sequence's own lease,
  // whole free blocks (lowest first, next to the previous one if possible), holes
  // of unleased blocks, other sequences' leases. Result i belongs to request i, in
  // token order; neighbours are merged. O(blocks touched), plus O(words of the
  // free-block bitmap) when searching.
  std::optional<std::vector<std::vector<CellSpan>>> find(std::span<const CellRequest> requests) const;

  // Takes free cells for `seq` with one sequence holder; moves its lease to the rest
  // of the block of the last cell. The span must be free (throws IntegrityError).
  void take(SeqId seq, CellSpan cells);

  // Adds or drops one sequence holder. Cells whose last holder goes become free.
  void add_holder(CellSpan cells);
  void drop_holder(CellSpan cells);

  // Sets or clears the tree's flag. Cells without any holder become free.
  void set_in_tree(CellSpan cells);
  void clear_in_tree(CellSpan cells);

  // Gives up the lease of `seq`, if it has one. O(1).
  void drop_lease(SeqId seq);

  const CellCounts& counts() const { return counts_; }
  std::uint32_t holders(CellIndex cell) const;  // sequences only
  bool in_tree(CellIndex cell) const;
  bool is_free(CellIndex cell) const;

  // Blocks without any held cell; candidates for giving memory back.
  bool block_is_free(BlockIndex block) const { return blocks_.at(block).free == ~std::uint64_t{0}; }
  std::uint32_t block_count() const { return static_cast<std::uint32_t>(blocks_.size()); }

  // Largest number of consecutive free cells. O(blocks); for statistics and tests.
  std::uint32_t largest_free_span() const;

  void check_integrity() const;  // throws IntegrityError

 private:
  struct Block {
    std::uint64_t free = ~std::uint64_t{0};
    std::uint64_t start = 0;
    SeqId lease{};
  };
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> extent_holders_;  // valid at extent starts; top bit: in tree
  CellCounts counts_;
  // Bitmaps over blocks (searchable by word) and the leases by sequence are private
  // to cell_map.cpp's helpers; see there.
  std::vector<std::uint64_t> whole_free_;    // bit per block: entirely free and not leased
  std::vector<std::uint64_t> partly_free_;   // bit per block: some free, some held
  std::vector<std::pair<SeqId, BlockIndex>> leases_;  // sorted by sequence
};

}  // namespace pykv
