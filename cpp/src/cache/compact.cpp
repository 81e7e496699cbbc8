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
CellMoves gather(const Cache::Impl& cache, std::uint32_t budget, std::span<const CellSpan> stuck) {
  CellMoves moves(cache.cells.block_count());
  Gathering gathering(cache.cells, moves, budget, stuck);
  cache.tree.for_cells([&](std::span<const CellSpan> spans) {
    if (gathering.is_done() || spans.size() < 2) return;
    std::uint32_t tokens = 0;
    for (const CellSpan span : spans) tokens += span.length;
    if (!Gathering::is_worthwhile(spans.size(), tokens)) return;
    for (const CellSpan span : spans) gathering.add(span);
    gathering.end();
  });
  for (const auto& [seq, sequence] : cache.sequences) {
    if (gathering.is_done()) break;
    if (!Gathering::is_worthwhile(sequence.runs.runs(), sequence.runs.tokens())) continue;
    sequence.runs.for_each({sequence.exact_upto, kMaxPos}, [&](const Run& run) {
      const CellSpan cells{run.cell, run.length};
      if (cache.cells.is_private(cells))
        gathering.add(cells);
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
std::uint32_t Cache::Impl::gather_runs(std::uint32_t budget) {
  CellMoves moves = gather(*this, budget, {});
  if (moves.is_empty()) return 0;
  RunList::Relocation lists;
  for (const auto& [seq, sequence] : sequences) lists.add(sequence.runs);
  const std::vector<CellSpan> torn = lists.restrict(moves);
  if (!torn.empty()) {
    moves = gather(*this, budget, torn);
    lists.restrict(moves);
  }
  return move_cells(moves, lists);
}

std::uint32_t Cache::Impl::empty_blocks(std::uint32_t budget) {
  CellMoves moves(cells.block_count());
  Evacuation(cells, moves, budget).run();
  if (moves.is_empty()) return 0;
  RunList::Relocation lists;
  for (const auto& [seq, sequence] : sequences) lists.add(sequence.runs);
  lists.restrict(moves);
  return move_cells(moves, lists);
}

std::uint32_t Cache::Impl::move_cells(const CellMoves& moves, RunList::Relocation& lists) {
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
  add_uncommitted(targets, to_commit);
  PrefixTree::Relocation nodes(tree, moves);
  FreshBlocks fresh(*this, to_commit);
  backend.copy_cells(pool, from, to);
  cells.relocate(moves);  // the last step that can fail
  lists.apply(moves);
  nodes.apply();
  fresh.keep();
  touch();
  return static_cast<std::uint32_t>(from.size());
}

// Blocks are emptied last: gathering leaves some with few cells, and takes whole free ones.
std::uint32_t Cache::Impl::compact(std::uint64_t budget_bytes) {
  const auto budget = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      budget_bytes / layout.bytes_per_cell(), std::numeric_limits<std::int32_t>::max()));
  if (budget == 0) return 0;
  std::uint32_t moved = gather_runs(budget);
  try {
    moved += empty_blocks(budget - moved);
  } catch (const std::bad_alloc&) {
    if (moved == 0) throw;  // else one half is done
  } catch (const OutOfMemory&) {
    if (moved == 0) throw;
  }
  compacted_cells += moved;
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
