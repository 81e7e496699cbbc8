#include <algorithm>
#include <cstring>
#include <limits>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

// Blocks of so many bytes lie on large pages: attention reads a few KiB of each, here and there,
// and finding a small page costs as much as reading it.
constexpr std::size_t kLargeBlock = std::size_t{1} << 18;

using cpu::Pool;
using cpu::refuse;

// The blocks in ascending order, without repetition, all committed or all not. `sorted` is
// needed where they are given in another order.
std::span<const BlockIndex> checked_blocks(const char* method, const Pool& pool,
                                           std::span<const BlockIndex> blocks, bool committed,
                                           std::vector<BlockIndex>& sorted) {
  if (!std::is_sorted(blocks.begin(), blocks.end())) {
    sorted.assign(blocks.begin(), blocks.end());
    std::sort(sorted.begin(), sorted.end());
    blocks = sorted;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const bool is_known = blocks[i] < pool.blocks;
    if (is_known && (i == 0 || blocks[i] != blocks[i - 1]) && pool.committed[blocks[i]] == committed)
      continue;
    const std::string which = "block " + std::to_string(blocks[i]);
    if (!is_known) refuse(method, which + "; the pool has " + std::to_string(pool.blocks));
    if (i > 0 && blocks[i] == blocks[i - 1]) refuse(method, which + " is named twice");
    refuse(method, which + (committed ? " is not committed" : " is committed already"));
  }
  return blocks;
}

// How many of the first blocks are neighbours: one system call does for them.
std::size_t neighbours(std::span<const BlockIndex> ascending) {
  std::size_t count = 1;
  while (count < ascending.size() && ascending[count] == ascending[count - 1] + 1) ++count;
  return count;
}

void release(Pool& pool, std::span<const BlockIndex> ascending) {
  const std::size_t bytes = pool.layout.block_bytes();
  for (std::size_t count = 0; !ascending.empty(); ascending = ascending.subspan(count)) {
    count = neighbours(ascending);
    pool.memory.release(ascending[0] * bytes, count * bytes);
  }
}

void check_layout(const BlockLayout& layout) {
  for (std::uint32_t i = 0; i < layout.layer_count(); ++i) {
    const BlockLayout::LayerPlace& place = layout.place(i);
    if (place.kv_heads != 0 && (place.k.dim > kernels::kMaxHeadDim || place.v.dim > kernels::kMaxVDim))
      refuse("create_pool", "layer " + std::to_string(i) + " has head sizes " + std::to_string(place.k.dim) +
                                " and " + std::to_string(place.v.dim) + "; the limits are " +
                                std::to_string(kernels::kMaxHeadDim) + " and " +
                                std::to_string(kernels::kMaxVDim));
  }
}

}  // namespace

void cpu::check_cell(const char* method, const Pool& pool, CellIndex cell) {
  const std::uint32_t block = cell / kBlockCells;
  if (block < pool.blocks && pool.committed[block]) return;
  refuse(method, "cell " + std::to_string(cell) + " lies in block " + std::to_string(block) +
                     ", which is not committed; the pool has " + std::to_string(pool.blocks) + " blocks");
}

Pool& cpu::State::pool(const char* method, PoolId id) {
  const auto found = pools.find(id.value);
  if (found == pools.end()) refuse(method, "no pool has the handle " + std::to_string(id.value));
  return found->second;
}

const BlockLayout::LayerPlace& cpu::State::layer(const char* method, const Pool& pool,
                                                 std::uint32_t layer) const {
  if (layer >= pool.layout.layer_count())
    refuse(method, "layer " + std::to_string(layer) + " of " + std::to_string(pool.layout.layer_count()));
  const BlockLayout::LayerPlace& place = pool.layout.place(layer);
  if (place.kv_heads == 0) refuse(method, "layer " + std::to_string(layer) + " is not in this pool");
  return place;
}

PoolId Backend::create_pool(const BlockLayout& layout, std::uint32_t blocks) {
  const auto call = impl_->enter();
  check_layout(layout);
  if (blocks == 0 || blocks > std::numeric_limits<CellIndex>::max() / kBlockCells ||
      layout.block_bytes() == 0)
    refuse("create_pool", std::to_string(blocks) + " blocks of " + std::to_string(layout.block_bytes()) +
                              " bytes; 1 to 2^26 - 1 blocks of at least one layer are possible");
  const std::size_t limit = std::numeric_limits<std::size_t>::max() / 2 / layout.block_bytes();
  cpu::MappedMemory memory;
  if (blocks <= limit)
    memory = cpu::MappedMemory::reserve(blocks * layout.block_bytes(), layout.block_bytes() >= kLargeBlock);
  if (memory.data() == nullptr)
    throw OutOfMemory("[Backend.create_pool] no address space for " + std::to_string(blocks) + " blocks of " +
                      std::to_string(layout.block_bytes()) + " bytes; ask for fewer cells");
  const PoolId id{impl_->next_id("create_pool")};
  impl_->pools.emplace(id.value, Pool{layout, blocks, std::move(memory), std::vector<bool>(blocks)});
  return id;
}

void Backend::destroy_pool(PoolId pool) {
  if (impl_->birthplace.left()) return;  // may be called by a destructor
  const auto call = impl_->enter();
  if (impl_->pools.erase(pool.value) == 0)
    refuse("destroy_pool", "no pool has the handle " + std::to_string(pool.value));
}

void Backend::commit_blocks(PoolId id, std::span<const BlockIndex> blocks) {
  const auto call = impl_->enter();
  Pool& pool = impl_->pool("commit_blocks", id);
  std::vector<BlockIndex> sorted;
  const std::span<const BlockIndex> all = checked_blocks("commit_blocks", pool, blocks, false, sorted);
  const std::size_t bytes = pool.layout.block_bytes();
  for (std::size_t done = 0, count = 0; done < all.size(); done += count) {
    count = neighbours(all.subspan(done));
    if (pool.memory.commit(all[done] * bytes, count * bytes)) continue;
    release(pool, all.first(done + count));
    throw OutOfMemory("[Backend.commit_blocks] the system has no memory for " + std::to_string(all.size()) +
                      " blocks of " + std::to_string(bytes) + " bytes; free cells or use a smaller pool");
  }
  for (const BlockIndex block : all) pool.committed[block] = true;
}

void Backend::release_blocks(PoolId id, std::span<const BlockIndex> blocks) {
  const auto call = impl_->enter();
  Pool& pool = impl_->pool("release_blocks", id);
  std::vector<BlockIndex> sorted;
  const std::span<const BlockIndex> all = checked_blocks("release_blocks", pool, blocks, true, sorted);
  release(pool, all);
  for (const BlockIndex block : all) pool.committed[block] = false;
}

}  // namespace pykv
