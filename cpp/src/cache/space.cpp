// Space: eviction of idle prefixes, reclaim by the watermarks, memory given back.
#include <algorithm>
#include <limits>
#include <new>

#include "cache/cache_impl.h"

namespace pykv {

std::uint32_t Cache::Impl::evict(std::uint32_t wanted, EvictReason reason) {
  std::uint32_t freed = 0;
  // With none idle a prefix would go for nothing: its cells stay with sequences that were edited.
  while (freed < wanted && base.cells.counts().idle > 0) {
    const std::uint32_t step = tree.evict(wanted - freed, now());
    freed += step;
    if (step == 0 && !withdraw_announcements()) break;
  }
  if (freed != 0) touch();
  evicted_cells[static_cast<int>(reason)] += freed;
  return freed;
}

// An announced prompt holds its whole path in the tree, also what others have computed of
// it meanwhile. That must not keep anybody from getting cells.
bool Cache::Impl::withdraw_announcements() {
  bool any = false;
  for (auto& [id, sequence] : sequences) {
    any = any || sequence.announced;
    withdraw_announcement(sequence);
  }
  return any;
}

// What sequences no longer need costs nobody anything; points cost a recomputation later.
std::uint32_t Cache::Impl::free_window_cells(std::uint32_t wanted) {
  std::uint32_t freed = 0;
  for (CellPool& pool : windows) {
    const std::uint32_t goal = std::min(wanted, pool.cells.counts().capacity),
                        before = pool.cells.counts().free;
    if (before < goal)
      for (auto& [id, sequence] : sequences) trim(sequence);
    while (pool.cells.counts().free < goal && points.drop_oldest()) {
    }
    freed += pool.cells.counts().free - before;
  }
  if (freed != 0) touch();
  return freed;
}

std::uint32_t Cache::Impl::drop_points_for_states(std::uint32_t wanted) {
  const std::uint32_t before = states.counts().free();
  while (states.counts().free() < wanted && points.drop_oldest()) touch();
  return states.counts().free() - before;
}

bool Cache::Impl::is_fragmented(const CellPool& pool) const {
  constexpr std::uint64_t kFragmentedShare = 4;
  const std::uint64_t in_use = (pool.committed_blocks() - pool.free_committed_blocks()) * kBlockCells;
  const std::uint64_t holes = in_use - pool.cells.counts().active - pool.cells.counts().idle;
  return holes * kFragmentedShare > pool.committed_blocks() * kBlockCells;
}

// Where a try moves nothing, the next ones come after twice as many ticks.
void Cache::Impl::compact_if_fragmented() noexcept {
  constexpr std::uint32_t kLongestPause = 255;
  if (config.compact_bytes == 0 || open_step != nullptr) return;
  if (!is_fragmented(base) && std::none_of(windows.begin(), windows.end(),
                                           [this](const CellPool& pool) { return is_fragmented(pool); }))
    return;
  if (compaction_pause > 0) {
    --compaction_pause;
    return;
  }
  try {
    const bool moved = compact(config.compact_bytes) > 0;
    last_compaction_pause = moved ? 0 : std::min(2 * last_compaction_pause + 1, kLongestPause);
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }  // in another tick
  compaction_pause = last_compaction_pause;
}

std::uint32_t Cache::evict(std::uint32_t cells, EvictReason reason) {
  const auto lock = impl_->link->lock();
  return impl_->evict(cells, reason);
}

std::uint32_t Cache::make_room(std::uint32_t tokens) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  if (const std::uint32_t lacking = std::exchange(c.lacking_states, 0); lacking > 0)
    return c.drop_points_for_states(lacking);
  std::uint32_t freed = c.free_window_cells(tokens);
  const std::uint32_t free = c.base.cells.counts().free;
  // Enough free cells, but in blocks that cannot be committed: free some in others.
  if (free < tokens || freed == 0)
    freed += c.evict(free < tokens ? tokens - free : tokens, EvictReason::demand);
  return freed;
}

std::uint32_t Cache::reclaim(std::uint32_t wanted) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  ++c.reclaim_ticks;
  const CellCounts& counts = c.base.cells.counts();
  const std::uint32_t target = reclaim_target(c.config.watermarks, counts.capacity, counts.free, wanted);
  std::uint32_t freed = 0;
  if (target > 0) {
    ++c.reclaim_runs;
    freed = c.evict(target, EvictReason::watermark);
  }
  c.compact_if_fragmented();
  for (std::size_t pool = 0; pool < c.pools(); ++pool)
    if (c.pool(pool).release_excess()) c.touch();
  if (c.states.release_excess()) c.touch();
  return freed;
}

void Cache::reset_prefixes() {
  const auto lock = impl_->link->lock();
  if (impl_->points.counts().points > 0) impl_->touch();
  impl_->points.drop_all();
  impl_->evict(std::numeric_limits<std::uint32_t>::max(), EvictReason::request);
}

}  // namespace pykv
