// Floor 3, private. Memory of blocks that lasts only if what it was committed for succeeds.
#pragma once

#include <span>

#include "cache/cache_impl.h"

namespace pykv {

class FreshBlocks {
 public:
  // Commits `blocks`, which ascend. Throws as Cache::Impl::commit_blocks.
  FreshBlocks(Cache::Impl& cache, std::span<const BlockIndex> blocks) : cache_(cache), blocks_(blocks) {
    cache.commit_blocks(blocks);
  }
  ~FreshBlocks() { cache_.release_blocks(blocks_); }
  FreshBlocks(const FreshBlocks&) = delete;
  FreshBlocks& operator=(const FreshBlocks&) = delete;

  void keep() noexcept { blocks_ = {}; }

 private:
  Cache::Impl& cache_;
  std::span<const BlockIndex> blocks_;
};

}  // namespace pykv
