// Memory of blocks: what cells need, committed and given back.
#include <algorithm>

#include "cache/cache_impl.h"

namespace pykv {

void Cache::Impl::add_uncommitted(std::span<const CellSpan> spans, std::vector<BlockIndex>& blocks) const {
  for (const CellSpan span : spans) {
    const BlockIndex last = (span.begin + span.length - 1) / kBlockCells;
    for (BlockIndex block = span.begin / kBlockCells; block <= last; ++block)
      if (!is_committed(block)) blocks.push_back(block);
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
}

void Cache::Impl::commit_blocks(std::span<const BlockIndex> blocks) {
  if (blocks.empty()) return;
  backend.commit_blocks(pool, blocks);
  for (const BlockIndex block : blocks) committed[block] = 1;
  committed_blocks += blocks.size();
  if constexpr (PYKV_POISON)
    for (const BlockIndex block : blocks) poison(block, ~std::uint64_t{0});
}

void Cache::Impl::release_blocks(std::span<const BlockIndex> blocks) {
  if (blocks.empty()) return;
  backend.release_blocks(pool, blocks);
  for (const BlockIndex block : blocks) committed[block] = 0;
  committed_blocks -= blocks.size();
}

// A step that fails gives cells back whose blocks it has not touched yet.
void Cache::Impl::poison(BlockIndex block, std::uint64_t freed) {
  if (is_committed(block)) backend.poison(pool, block, freed);
}

}  // namespace pykv
