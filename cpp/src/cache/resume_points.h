// Floor 3, private. Places in the prefix tree from which a sequence continues exactly.
//
// Full attention continues behind every token of the tree. Layers that forget do not: a
// window pool has lost the cells behind its window, a recurrent state knows one position. A
// *resume point* keeps what they need at one depth: of each window pool the cells of positions
// [first_visible(depth), depth), and, where the cache has recurrent layers, the slot of a
// snapshot. A sequence continues from the deepest point on its path; what lies behind is
// computed again.
//
// A point is a mark of the tree: it goes when its tokens are evicted, and keeps no token from
// that. Its cells carry the tree's flag in the window pool's CellMap (they are not in the tree
// itself, so the flag is free): `idle` counts cells there that points alone hold. Points of
// neighbouring depths and live sequences share cells.
//
// Budget: the bytes of all cells that points hold, each cell once, and of their snapshots. Who
// exceeds it drives out the least recently used point. With a budget of 0 there are none.
// Threads: externally locked. Costs: add and drop O(cells of the point), find O(nodes).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pykv/cell_map.h"
#include "pykv/layer_table.h"
#include "pykv/prefix_tree.h"
#include "pykv/run_list.h"

namespace pykv {

class ResumePoints {
 public:
  using PointId = PrefixTree::MarkId;

  struct Pool {  // of window layers
    CellMap* cells;
    Window window;
    std::uint64_t bytes_per_cell;
  };
  struct Config {
    std::vector<Pool> pools;
    std::uint64_t budget = 0;
    std::uint64_t state_bytes = 0;                 // of a snapshot, if there are recurrent layers
    std::function<void(StateSlot)> release_state;  // a point that had it is gone; must not throw
  };
  // What a sequence needs to continue: of each pool the runs of the window, without gaps or
  // rotation, and a snapshot.
  struct Memory {
    std::vector<std::vector<Run>> windows;
    std::optional<StateSlot> state;
  };

  // `tree` and the pools' maps must outlive it.
  ResumePoints(PrefixTree& tree, Config config);
  ~ResumePoints();
  ResumePoints(const ResumePoints&) = delete;
  ResumePoints& operator=(const ResumePoints&) = delete;

  // Makes the place behind the first `depth` ready tokens of the holder's path one, and the most
  // recently used. False: there is one already (which counts as used), or `memory` alone exceeds
  // the budget; then the caller keeps the snapshot. Throws InvalidArgument as PrefixTree::mark,
  // IntegrityError for runs that do not cover the windows; nothing has changed then.
  bool add(PrefixTree::HolderId holder, std::uint32_t depth, Memory memory);

  // The deepest point at most `limit` tokens deep.
  std::optional<PointId> find(NamespaceId ns, std::span<const Token> tokens, std::uint32_t limit) const;
  std::optional<PointId> find(PrefixTree::HolderId holder, std::uint32_t limit) const;
  std::uint32_t depth(PointId point) const;
  const Memory& memory(PointId point) const;
  void use(PointId point) noexcept;  // is the most recently used one from now on

  bool drop_oldest();  // the least recently used one; false: there is none
  void drop_all();

  struct Counts {
    std::uint32_t points = 0;
    std::uint64_t bytes = 0, budget = 0;  // of cells and snapshots
    std::uint64_t dropped = 0;            // for want of budget or cells
  };
  const Counts& counts() const { return counts_; }

  // Calls visit(cells) for the runs that points hold in a pool.
  template <class Visit>
  void for_cells(std::size_t pool, Visit visit) const {
    for (const Point& point : points_)
      for (const Run& run :
           point.is_live ? std::span<const Run>(point.memory.windows[pool]) : std::span<const Run>{})
        visit(CellSpan{run.cell, run.length});
  }

  // Cells of points on their way to others of their pool. Only the constructor can fail.
  class Relocation {
   public:
    Relocation(ResumePoints& points, std::size_t pool, const CellMoves& moves);
    void apply() noexcept;

   private:
    ResumePoints& points_;
    std::size_t pool_;
    const CellMoves& moves_;
    std::vector<std::pair<std::uint32_t, std::vector<Run>>> moved_;  // by point
  };

  void check_integrity() const;  // throws IntegrityError

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Point {
    bool is_live = false;
    Memory memory;
    std::uint32_t older = kNone, newer = kNone;
  };
  void check_runs(std::uint32_t depth, const Memory& memory) const;
  std::uint64_t bytes_of(const Memory& memory) const;
  void hold(const Memory& memory);
  void let_go(std::size_t pool, CellSpan cells);
  void link(std::uint32_t id) noexcept;
  void unlink(std::uint32_t id) noexcept;
  void forget(std::uint32_t id);  // its mark is gone

  PrefixTree& tree_;
  Config config_;
  std::vector<Point> points_;                        // by id
  std::vector<std::vector<std::uint32_t>> holders_;  // per pool and cell: points that have it
  std::uint32_t oldest_ = kNone, newest_ = kNone;
  Counts counts_;
};

}  // namespace pykv
