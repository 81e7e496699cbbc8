#include <algorithm>
#include <cstring>
#include <limits>

#include "backend_cpu/impl.h"
#include "kernels/kv_cell.h"
#include "pykv/quant.h"

namespace pykv {
namespace {

using cpu::Pool;
using cpu::refuse;

// Blocks ascending, without repetition, all committed or all not.
std::vector<BlockIndex> check_blocks(const char* method, const Pool& pool, std::span<const BlockIndex> blocks,
                                     bool committed) {
  std::vector<BlockIndex> sorted(blocks.begin(), blocks.end());
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::string which = "block " + std::to_string(sorted[i]);
    if (sorted[i] >= pool.blocks) refuse(method, which + "; the pool has " + std::to_string(pool.blocks));
    if (i > 0 && sorted[i] == sorted[i - 1]) refuse(method, which + " is named twice");
    if (pool.committed[sorted[i]] != committed)
      refuse(method, which + (committed ? " is not committed" : " is committed already"));
  }
  return sorted;
}

struct BlockSpan {
  std::size_t first;
  std::size_t count;
};

// Neighbouring blocks together: one system call for each.
std::vector<BlockSpan> join(const std::vector<BlockIndex>& sorted) {
  std::vector<BlockSpan> spans;
  for (const BlockIndex block : sorted) {
    if (!spans.empty() && spans.back().first + spans.back().count == block) {
      ++spans.back().count;
    } else {
      spans.push_back({block, 1});
    }
  }
  return spans;
}

void check_cells(const char* method, const Pool& pool, std::span<const CellIndex> cells) {
  for (const CellIndex cell : cells) cpu::check_cell(method, pool, cell);
}

// Two rows for one cell would race.
void check_distinct(std::span<const CellIndex> cells) {
  const auto not_ascending = [](CellIndex a, CellIndex b) { return a >= b; };
  if (std::adjacent_find(cells.begin(), cells.end(), not_ascending) == cells.end()) return;
  std::vector<CellIndex> sorted(cells.begin(), cells.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse("write_kv", "cell " + std::to_string(*twice) + " is named twice");
}

constexpr std::size_t kMaxRowBytes = kernels::kMaxHeadDim * sizeof(float);

void encode_cell(const kernels::CellPlace& place, const float* values) {
  std::byte row[kMaxRowBytes];
  encode_row(place.type, {values, place.dim}, {row, row_bytes(place.type, place.dim)});
  kernels::store_cell(place, row);
}

void decode_cell(const kernels::CellPlace& place, float* values) {
  std::byte row[kMaxRowBytes];
  kernels::load_cell(place, row);
  decode_row(place.type, {row, row_bytes(place.type, place.dim)}, {values, place.dim});
}

void check_layout(const BlockLayout& layout) {
  for (std::uint32_t i = 0; i < layout.layer_count(); ++i) {
    const BlockLayout::LayerPlace& place = layout.place(i);
    if (place.kv_heads != 0 && (place.k.dim > kernels::kMaxHeadDim || place.v.dim > kernels::kMaxHeadDim))
      refuse("create_pool", "layer " + std::to_string(i) + " has head sizes " + std::to_string(place.k.dim) +
                                " and " + std::to_string(place.v.dim) + "; the limit is " +
                                std::to_string(kernels::kMaxHeadDim));
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
  if (blocks <= limit) memory = cpu::MappedMemory::reserve(blocks * layout.block_bytes());
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
  const std::vector<BlockIndex> sorted = check_blocks("commit_blocks", pool, blocks, false);
  const std::vector<BlockSpan> spans = join(sorted);
  const std::size_t bytes = pool.layout.block_bytes();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (pool.memory.commit(spans[i].first * bytes, spans[i].count * bytes)) continue;
    for (std::size_t j = 0; j <= i; ++j) pool.memory.release(spans[j].first * bytes, spans[j].count * bytes);
    throw OutOfMemory("[Backend.commit_blocks] the system has no memory for " +
                      std::to_string(sorted.size()) + " blocks of " + std::to_string(bytes) +
                      " bytes; free cells or use a smaller pool");
  }
  for (const BlockIndex block : sorted) pool.committed[block] = true;
}

void Backend::release_blocks(PoolId id, std::span<const BlockIndex> blocks) {
  const auto call = impl_->enter();
  Pool& pool = impl_->pool("release_blocks", id);
  const std::vector<BlockIndex> sorted = check_blocks("release_blocks", pool, blocks, true);
  const std::size_t bytes = pool.layout.block_bytes();
  for (const BlockSpan span : join(sorted)) pool.memory.release(span.first * bytes, span.count * bytes);
  for (const BlockIndex block : sorted) pool.committed[block] = false;
}

void Backend::write_kv(PoolId id, std::uint32_t layer, Rows k, Rows v, std::span<const CellIndex> cells) {
  const auto call = impl_->enter();
  Pool& pool = impl_->pool("write_kv", id);
  const BlockLayout::LayerPlace& place = impl_->layer("write_kv", pool, layer);
  const cpu::RowView keys = impl_->view("write_kv", "k", k);
  const cpu::RowView values = impl_->view("write_kv", "v", v);
  cpu::check_width("write_kv", "k", keys, std::uint64_t{place.kv_heads} * place.k.dim);
  cpu::check_width("write_kv", "v", values, std::uint64_t{place.kv_heads} * place.v.dim);
  cpu::check_count("write_kv", "k", keys, cells.size());
  cpu::check_count("write_kv", "v", values, cells.size());
  check_cells("write_kv", pool, cells);
  check_distinct(cells);
  constexpr std::uint32_t kRows = 16;
  const std::uint32_t tasks = (keys.count + kRows - 1) / kRows;
  impl_->threads->run(tasks, [&](std::uint32_t task, std::uint32_t) {
    const std::uint32_t end = std::min(keys.count, (task + 1) * kRows);
    for (std::uint32_t i = task * kRows; i < end; ++i) {
      std::byte* const block = pool.block(cells[i] / kBlockCells);
      const std::uint32_t cell = cells[i] % kBlockCells;
      for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
        encode_cell(kernels::k_place(place.k, block + place.k_tile(head), cell),
                    keys.row(i) + head * place.k.dim);
        encode_cell(kernels::v_place(place.v, block + place.v_tile(head), cell),
                    values.row(i) + head * place.v.dim);
      }
    }
  });
}

void Backend::read_kv(PoolId id, std::uint32_t layer, std::span<const CellIndex> cells, std::span<float> k,
                      std::span<float> v) const {
  const auto call = impl_->enter();
  const Pool& pool = impl_->pool("read_kv", id);
  const BlockLayout::LayerPlace& place = impl_->layer("read_kv", pool, layer);
  const std::size_t k_width = std::size_t{place.kv_heads} * place.k.dim;
  const std::size_t v_width = std::size_t{place.kv_heads} * place.v.dim;
  if (k.size() != cells.size() * k_width || v.size() != cells.size() * v_width)
    refuse("read_kv", "room for " + std::to_string(k.size()) + " and " + std::to_string(v.size()) +
                          " values; " + std::to_string(cells.size()) + " cells have " +
                          std::to_string(k_width) + " and " + std::to_string(v_width) + " each");
  check_cells("read_kv", pool, cells);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    std::byte* const block = pool.block(cells[i] / kBlockCells);
    const std::uint32_t cell = cells[i] % kBlockCells;
    for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
      decode_cell(kernels::k_place(place.k, block + place.k_tile(head), cell),
                  k.data() + i * k_width + std::size_t{head} * place.k.dim);
      decode_cell(kernels::v_place(place.v, block + place.v_tile(head), cell),
                  v.data() + i * v_width + std::size_t{head} * place.v.dim);
    }
  }
}

void Backend::rewrite_k(PoolId, std::uint32_t, std::span<const CellIndex>, std::span<const CellIndex>,
                        std::span<const Pos>, const RopeParams&) {
  throw Unsupported("[Backend.rewrite_k] this build cannot rewrite K");
}

void Backend::copy_cells(PoolId, std::span<const CellIndex>, std::span<const CellIndex>) {
  throw Unsupported("[Backend.copy_cells] this build cannot copy cells");
}

}  // namespace pykv
