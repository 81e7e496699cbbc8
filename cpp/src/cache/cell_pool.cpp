#include "cache/cell_pool.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "pykv/errors.h"

namespace pykv {
namespace {

// Free committed blocks up to this share of the committed ones stay, so that a pool at
// a steady load does not give memory back and touch it again every tick.
constexpr std::uint64_t kHysteresisShare = 8;

}  // namespace

CellPool::CellPool(Backend& machine, BlockLayout places, Window its_window, std::uint32_t blocks)
    : backend(machine),
      layout(std::move(places)),
      window(its_window),
      cells(blocks),
      committed_(blocks),
      id(layout.block_bytes() == 0 ? PoolId{} : machine.create_pool(layout, blocks)) {
  if constexpr (PYKV_POISON)
    cells.on_freed([this](BlockIndex block, std::uint64_t freed) { poison(block, freed); });
}

CellPool::~CellPool() {
  if (has_memory()) backend.destroy_pool(id);
}

void CellPool::add_uncommitted(std::span<const CellSpan> spans, std::vector<BlockIndex>& blocks) const {
  for (const CellSpan span : spans) {
    const BlockIndex last = (span.begin + span.length - 1) / kBlockCells;
    for (BlockIndex block = span.begin / kBlockCells; block <= last; ++block)
      if (!is_committed(block)) blocks.push_back(block);
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
}

void CellPool::commit_blocks(std::span<const BlockIndex> blocks) {
  if (blocks.empty()) return;
  if (has_memory()) backend.commit_blocks(id, blocks);
  for (const BlockIndex block : blocks) committed_[block] = 1;
  committed_blocks_ += blocks.size();
  if constexpr (PYKV_POISON)
    for (const BlockIndex block : blocks) poison(block, ~std::uint64_t{0});
}

void CellPool::release_blocks(std::span<const BlockIndex> blocks) {
  if (blocks.empty()) return;
  if (has_memory()) backend.release_blocks(id, blocks);
  for (const BlockIndex block : blocks) committed_[block] = 0;
  committed_blocks_ -= blocks.size();
}

// A step that fails gives cells back whose blocks it has not touched yet.
void CellPool::poison(BlockIndex block, std::uint64_t freed) {
  if (has_memory() && is_committed(block)) backend.poison(id, block, freed);
}

bool CellPool::release_excess() {
  const std::uint64_t keep = committed_blocks_ / kHysteresisShare;
  const std::uint64_t idle = free_committed_blocks();
  if (idle <= keep) return false;  // every tick comes here
  try {
    std::vector<BlockIndex> excess;
    excess.reserve(idle - keep);
    // Highest first: low blocks are the next to be used.
    for (BlockIndex block = cells.block_count(); block-- > 0 && excess.size() < idle - keep;) {
      if (is_committed(block) && cells.block_is_free(block)) excess.push_back(block);
    }
    release_blocks(excess);
  } catch (const std::bad_alloc&) {
    return false;  // without memory for the list it is done in another tick
  }
  return true;
}

void CellPool::check_integrity(const std::string& name) const {
  cells.check_integrity();
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw IntegrityError("[Cache.check_integrity] " + name + ": " + what);
  };
  std::uint64_t committed = 0, free_committed = 0;
  for (BlockIndex block = 0; block < cells.block_count(); ++block) {
    if (is_committed(block)) {
      ++committed;
      free_committed += cells.block_is_free(block) ? 1 : 0;
    } else {
      require(cells.block_is_free(block), "block " + std::to_string(block) + " is held but not committed");
    }
  }
  require(committed == committed_blocks_, "committed blocks do not add up");
  require(free_committed == free_committed_blocks(), "free committed blocks do not add up");
  const CellCounts& counts = cells.counts();
  require(counts.active + counts.idle + counts.free == counts.capacity, "cell states do not add up");
}

}  // namespace pykv
