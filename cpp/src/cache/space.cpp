// Space: eviction of idle prefixes, reclaim by the watermarks, memory given back.
#include <algorithm>
#include <limits>
#include <new>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

// Free committed blocks up to this share of the committed ones stay, so that a pool at
// a steady load does not give memory back and touch it again every tick.
constexpr std::uint64_t kHysteresisShare = 8;

}  // namespace

std::uint32_t Cache::Impl::evict(std::uint32_t wanted, EvictReason reason) {
  std::uint32_t freed = 0;
  while (freed < wanted) {
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

void Cache::Impl::release_excess_blocks() {
  const std::uint64_t keep = committed_blocks / kHysteresisShare;
  const std::uint64_t idle = free_committed_blocks();
  if (idle <= keep) return;  // every tick comes here
  try {
    std::vector<BlockIndex> excess;
    excess.reserve(idle - keep);
    // Highest first: low blocks are the next to be used.
    for (BlockIndex block = cells.block_count(); block-- > 0 && excess.size() < idle - keep;) {
      if (is_committed(block) && cells.block_is_free(block)) excess.push_back(block);
    }
    release_blocks(excess);
  } catch (const std::bad_alloc&) {
    return;  // without memory for the list it is done in another tick
  }
  touch();
}

// Where a try moves nothing, the next ones come after twice as many ticks.
void Cache::Impl::compact_if_fragmented() noexcept {
  constexpr std::uint64_t kFragmentedShare = 4;
  constexpr std::uint32_t kLongestPause = 255;
  if (config.compact_bytes == 0 || open_step != nullptr) return;
  const std::uint64_t in_use = (committed_blocks - free_committed_blocks()) * kBlockCells;
  const std::uint64_t holes = in_use - cells.counts().active - cells.counts().idle;
  if (holes * kFragmentedShare <= committed_blocks * kBlockCells) return;
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

std::uint32_t Cache::reclaim(std::uint32_t wanted) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  ++c.reclaim_ticks;
  const CellCounts& counts = c.cells.counts();
  const std::uint32_t target = reclaim_target(c.config.watermarks, counts.capacity, counts.free, wanted);
  std::uint32_t freed = 0;
  if (target > 0) {
    ++c.reclaim_runs;
    freed = c.evict(target, EvictReason::watermark);
  }
  c.compact_if_fragmented();
  c.release_excess_blocks();
  return freed;
}

void Cache::reset_prefixes() {
  const auto lock = impl_->link->lock();
  impl_->evict(std::numeric_limits<std::uint32_t>::max(), EvictReason::request);
}

}  // namespace pykv
