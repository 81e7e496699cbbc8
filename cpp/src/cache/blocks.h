// Floor 3, private. Memory of blocks that lasts only if what it was committed for succeeds.
#pragma once

#include <span>

#include "cache/cell_pool.h"

namespace pykv {

class FreshBlocks {
 public:
  // Commits `blocks`, which ascend. Throws as CellPool::commit_blocks.
  FreshBlocks(CellPool& pool, std::span<const BlockIndex> blocks) : pool_(pool), blocks_(blocks) {
    pool.commit_blocks(blocks);
  }
  ~FreshBlocks() { pool_.release_blocks(blocks_); }
  FreshBlocks(const FreshBlocks&) = delete;
  FreshBlocks& operator=(const FreshBlocks&) = delete;

  void keep() noexcept { blocks_ = {}; }

 private:
  CellPool& pool_;
  std::span<const BlockIndex> blocks_;
};

}  // namespace pykv
