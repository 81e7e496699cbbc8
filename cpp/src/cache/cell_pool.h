// Floor 3, private. The cells of the layers that see the same tokens, and the cells' memory.
//
// Every held cell lies in a committed block.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pykv/backend.h"
#include "pykv/block_layout.h"
#include "pykv/cell_map.h"
#include "pykv/layer_table.h"

namespace pykv {

class CellPool {
 public:
  // `window`: of its layers; none for pool 0. Throws OutOfMemory.
  CellPool(Backend& machine, BlockLayout places, Window window, std::uint32_t blocks);
  ~CellPool();
  CellPool(const CellPool&) = delete;
  CellPool& operator=(const CellPool&) = delete;

  // Whether layers store anything in it; else its cells only count tokens.
  bool has_memory() const { return layout.block_bytes() != 0; }
  bool is_committed(BlockIndex block) const { return committed_[block] != 0; }
  // Adds the blocks of `spans` that have no memory; the list ascends then.
  void add_uncommitted(std::span<const CellSpan> spans, std::vector<BlockIndex>& blocks) const;
  void commit_blocks(std::span<const BlockIndex> blocks);   // throws OutOfMemory, then none is committed
  void release_blocks(std::span<const BlockIndex> blocks);  // needs no memory if they ascend
  std::uint64_t committed_blocks() const { return committed_blocks_; }
  // Blocks that are not committed are free: every held cell lies in a committed one.
  std::uint64_t free_committed_blocks() const {
    return cells.counts().free_blocks + committed_blocks_ - cells.block_count();
  }
  // Gives memory of whole free blocks back beyond a hysteresis; false: there was none to give.
  bool release_excess();
  void check_integrity(const std::string& name) const;  // throws IntegrityError

  Backend& backend;
  const BlockLayout layout;
  const Window window;
  CellMap cells;

 private:
  void poison(BlockIndex block, std::uint64_t freed);  // with PYKV_POISON, what becomes free

  std::vector<std::uint8_t> committed_;  // per block
  std::uint64_t committed_blocks_ = 0;

 public:
  const PoolId id;  // made last: nothing fails after it
};

}  // namespace pykv
