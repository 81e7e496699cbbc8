// Compaction: cells move so that runs become long and nearly empty blocks free.
#include "cache/compact.h"

#include <algorithm>
#include <limits>
#include <new>

#include "cache/blocks.h"
#include "cache/cache_impl.h"

namespace pykv {
namespace {

// Short runs of nodes of the tree, and of what sequences have for themselves. Cells that several
// runs hold outside the tree stay: what is in order for one might be in disorder for another.
CellMoves gather(const Cache::Impl& cache, std::size_t pool, std::uint32_t budget,
                 std::span<const CellSpan> stuck) {
  const CellMap& cells = cache.pool(pool).cells;
  CellMoves moves(cells.block_count());
  Gathering gathering(cells, moves, budget, stuck);
  if (pool == 0) {
    cache.tree.for_cells([&](std::span<const CellSpan> spans) {
      if (gathering.is_done() || spans.size() < 2) return;
      std::uint32_t tokens = 0;
      for (const CellSpan span : spans) tokens += span.length;
      if (!Gathering::is_worthwhile(spans.size(), tokens)) return;
      for (const CellSpan span : spans) gathering.add(span);
      gathering.end();
    });
  }
  for (const auto& [seq, sequence] : cache.sequences) {
    if (gathering.is_done()) break;
    const RunList& runs = Cache::Impl::runs_of(sequence, pool);
    if (!Gathering::is_worthwhile(runs.runs(), runs.tokens())) continue;
    runs.for_each({pool == 0 ? sequence.exact_upto : 0, kMaxPos}, [&](const Run& run) {
      const CellSpan span{run.cell, run.length};
      if (cells.is_private(span))
        gathering.add(span);
      else
        gathering.end();
    });
    gathering.end();
  }
  return moves;
}

}  // namespace

// A sequence may go on behind the end of a node in the same block. Its cells there are one piece,
// which then stays, so that the others can move.
std::uint32_t Cache::Impl::gather_runs(std::size_t pool, std::uint32_t budget) {
  CellMoves moves = gather(*this, pool, budget, {});
  if (moves.is_empty()) return 0;
  RunList::Relocation lists;
  for (const auto& [seq, sequence] : sequences) lists.add(runs_of(sequence, pool));
  const std::vector<CellSpan> torn = lists.restrict(moves);
  if (!torn.empty()) {
    moves = gather(*this, pool, budget, torn);
    lists.restrict(moves);
  }
  return move_cells(pool, moves, lists);
}

std::uint32_t Cache::Impl::empty_blocks(std::size_t pool, std::uint32_t budget) {
  const CellMap& cells = this->pool(pool).cells;
  CellMoves moves(cells.block_count());
  Evacuation(cells, moves, budget).run();
  if (moves.is_empty()) return 0;
  RunList::Relocation lists;
  for (const auto& [seq, sequence] : sequences) lists.add(runs_of(sequence, pool));
  lists.restrict(moves);
  return move_cells(pool, moves, lists);
}

std::uint32_t Cache::Impl::move_cells(std::size_t index, const CellMoves& moves, RunList::Relocation& lists) {
  CellPool& pool = this->pool(index);
  std::vector<CellIndex> from, to;
  std::vector<CellSpan> targets;
  moves.for_each([&](const CellMoves::Move& move) {
    targets.push_back({move.to, move.from.length});
    for (std::uint32_t i = 0; i < move.from.length; ++i) {
      from.push_back(move.from.begin + i);
      to.push_back(move.to + i);
    }
  });
  if (from.empty()) return 0;
  std::vector<BlockIndex> to_commit;
  pool.add_uncommitted(targets, to_commit);
  std::optional<PrefixTree::Relocation> nodes;
  std::optional<ResumePoints::Relocation> places;
  if (index == 0)
    nodes.emplace(tree, moves);
  else
    places.emplace(points, index - 1, moves);
  FreshBlocks fresh(pool, to_commit);
  if (pool.has_memory()) backend.copy_cells(pool.id, from, to);
  pool.cells.relocate(moves);  // the last step that can fail
  lists.apply(moves);
  if (nodes) nodes->apply();
  if (places) places->apply();
  fresh.keep();
  touch();
  return static_cast<std::uint32_t>(from.size());
}

// Blocks are emptied last: gathering leaves some with few cells, and takes whole free ones.
std::uint32_t Cache::Impl::compact(std::size_t pool, std::uint32_t budget) {
  std::uint32_t moved = gather_runs(pool, budget);
  try {
    moved += empty_blocks(pool, budget - moved);
  } catch (const std::bad_alloc&) {
    if (moved == 0) throw;  // else one half is done
  } catch (const OutOfMemory&) {
    if (moved == 0) throw;
  }
  return moved;
}

std::uint32_t Cache::Impl::compact(std::uint64_t budget_bytes) {
  std::uint32_t moved = 0;
  for (std::size_t i = 0; i < pools(); ++i) {
    const std::uint64_t each = std::max<std::uint64_t>(pool(i).layout.bytes_per_cell(), 1);
    const auto budget = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(budget_bytes / each, std::numeric_limits<std::int32_t>::max()));
    if (budget == 0) continue;
    const std::uint32_t here = compact(i, budget);
    budget_bytes -= here * each;
    compacted_cells += here;
    moved += here;
  }
  if (moved > 0) ++compactions;
  return moved;
}

std::uint32_t Cache::compact(std::uint64_t budget_bytes) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  if (c.open_step != nullptr)
    throw Busy(where("compact") + "a step is open and reads its cells; finish it or roll it back first");
  return c.compact(budget_bytes);
}

}  // namespace pykv
