#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

using cpu::AttentionWorker;
using cpu::refuse;
using kernels::kMaxHeadDim;
using kernels::kQueryBlock;
using kernels::Partial;

constexpr std::uint32_t kPartition = kPartitionPositions;
constexpr std::size_t kMaxPartialFloats = std::size_t{1} << 24;  // 64 MiB

// Up to kQueryBlock queries of one group and KV head. Query i of a group is row i / share,
// head i % share of those that read the same KV head.
struct QueryBlock {
  const AttentionGroup* group;
  std::uint32_t kv_head;
  std::uint32_t first;
  std::uint32_t count;
  std::uint32_t partitions;  // that its last query sees
  std::size_t partial;       // of its first partition, in units of one block and partition
};

struct Attention {
  const cpu::Pool* pool;
  const BlockLayout::LayerPlace* place;
  cpu::RowView q, out;
  const AttentionBatch* batch;
  std::uint32_t share;  // query heads per KV head
  float scale;
  std::size_t stride;  // of unnormalized output rows

  Pos position(const QueryBlock& block, std::uint32_t i) const {
    return block.group->first_position + static_cast<Pos>((block.first + i) / share);
  }
  std::uint32_t row(const QueryBlock& block, std::uint32_t i) const {
    return block.group->first_row + (block.first + i) / share;
  }
  std::uint32_t head(const QueryBlock& block, std::uint32_t i) const {
    return block.kv_head * share + (block.first + i) % share;
  }
};

void check_segments(const cpu::Pool& pool, const AttentionBatch& batch, const AttentionGroup& group) {
  if (std::uint64_t{group.first_segment} + group.segments > batch.segments.size())
    refuse("attend", "segments " + std::to_string(group.first_segment) + " to " +
                         std::to_string(std::uint64_t{group.first_segment} + group.segments) + " of " +
                         std::to_string(batch.segments.size()));
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < group.segments; ++i) {
    const Segment& segment = batch.segments[group.first_segment + i];
    if (segment.rotation != 0)
      throw Unsupported("[Backend.attend] a segment has rotation " + std::to_string(segment.rotation) +
                        "; this build supports 0 only");
    if (segment.slot != static_cast<std::uint32_t>(segment.first))
      throw Unsupported("[Backend.attend] slot " + std::to_string(segment.slot) + " has position " +
                        std::to_string(segment.first) + "; this build supports equal ones only");
    if (segment.first < 0 || static_cast<std::uint64_t>(segment.first) != next || segment.length == 0)
      refuse("attend", "a segment of length " + std::to_string(segment.length) + " begins at position " +
                           std::to_string(segment.first) + "; the next one must begin at " +
                           std::to_string(next) + " and not be empty");
    next += segment.length;
    const std::uint64_t last = std::uint64_t{segment.cell} + segment.length - 1;
    if (last >= std::uint64_t{pool.blocks} * kBlockCells)
      refuse("attend", "cell " + std::to_string(last) + "; the pool has " +
                           std::to_string(std::uint64_t{pool.blocks} * kBlockCells));
    for (std::uint64_t block = segment.cell / kBlockCells; block <= last / kBlockCells; ++block)
      cpu::check_cell("attend", pool, static_cast<CellIndex>(block * kBlockCells));
  }
  const std::uint64_t needed = static_cast<std::uint64_t>(group.first_position) + group.rows;
  if (next < needed)
    refuse("attend", "segments cover " + std::to_string(next) + " positions, the last query sees " +
                         std::to_string(needed));
}

void check_groups(const cpu::Pool& pool, const AttentionBatch& batch, std::uint32_t rows) {
  std::uint64_t next_row = 0;
  for (const AttentionGroup& group : batch.groups) {
    const std::uint64_t end = std::uint64_t{group.first_row} + group.rows;
    if (group.rows == 0 || group.first_row < next_row || end > rows)
      refuse("attend", "a group has rows " + std::to_string(group.first_row) + " to " + std::to_string(end) +
                           "; groups are not empty, ascend, do not overlap and end at " +
                           std::to_string(rows));
    next_row = end;
    if (group.first_position < 0 ||
        static_cast<std::uint64_t>(group.first_position) + group.rows > std::uint64_t{kMaxPos})
      refuse("attend", "positions from " + std::to_string(group.first_position) + " for " +
                           std::to_string(group.rows) + " rows; the limit is " + std::to_string(kMaxPos));
    if (group.first_slot != static_cast<std::uint32_t>(group.first_position))
      throw Unsupported("[Backend.attend] slot " + std::to_string(group.first_slot) + " has position " +
                        std::to_string(group.first_position) + "; this build supports equal ones only");
    check_segments(pool, batch, group);
  }
}

void check_features(const AttentionParams& params) {
  const auto unsupported = [](const char* feature) {
    throw Unsupported("[Backend.attend] " + std::string(feature) + " is not supported by this build");
  };
  if (params.softcap != 0) unsupported("softcap");
  if (!params.sinks.empty()) unsupported("sinks");
  if (!params.alibi_slopes.empty()) unsupported("alibi_slopes");
  if (params.window.kind != WindowKind::none) unsupported("a window");
}

std::vector<QueryBlock> cut_queries(const Attention& a) {
  std::vector<QueryBlock> blocks;
  std::size_t partial = 0;
  for (const AttentionGroup& group : a.batch->groups) {
    const std::uint32_t queries = group.rows * a.share;
    for (std::uint32_t head = 0; head < a.place->kv_heads; ++head)
      for (std::uint32_t first = 0; first < queries; first += kQueryBlock) {
        QueryBlock block{&group, head, first, std::min(kQueryBlock, queries - first), 0, partial};
        block.partitions = static_cast<std::uint32_t>(a.position(block, block.count - 1)) / kPartition + 1;
        partial += block.partitions;
        blocks.push_back(block);
      }
  }
  return blocks;
}

// Cells of positions [begin, end) of the group, cut where blocks end.
std::span<const kernels::KvPiece> find_pieces(const Attention& a, const QueryBlock& block,
                                              std::uint32_t begin, std::uint32_t end,
                                              AttentionWorker& worker) {
  const auto all = std::span(a.batch->segments).subspan(block.group->first_segment, block.group->segments);
  auto segment =
      std::upper_bound(all.begin(), all.end(), begin, [](std::uint32_t position, const Segment& s) {
        return position < static_cast<std::uint32_t>(s.first);
      });
  --segment;
  std::size_t count = 0;
  for (std::uint32_t position = begin; position < end;) {
    const std::uint32_t offset = position - static_cast<std::uint32_t>(segment->first);
    const CellIndex cell = segment->cell + offset;
    const std::uint32_t length =
        std::min({segment->length - offset, kBlockCells - cell % kBlockCells, end - position});
    const std::byte* const base = a.pool->block(cell / kBlockCells);
    worker.pieces[count++] = {base + a.place->k_tile(block.kv_head), base + a.place->v_tile(block.kv_head),
                              cell % kBlockCells, length, position - begin};
    position += length;
    if (offset + length == segment->length) ++segment;
  }
  return {worker.pieces, count};
}

void attend_partition(const kernels::Kernels& kernels, const Attention& a, const QueryBlock& block,
                      std::uint32_t partition, const Partial& result, AttentionWorker& worker) {
  const std::uint32_t begin = partition * kPartition;
  for (std::uint32_t i = 0; i < block.count; ++i) {
    const std::uint32_t seen = static_cast<std::uint32_t>(a.position(block, i)) + 1;
    worker.visible[i] = seen <= begin ? 0 : std::min(seen - begin, kPartition);
    worker.queries[i] = a.q.row(a.row(block, i)) + std::size_t{a.head(block, i)} * a.place->k.dim;
  }
  const std::uint32_t end = begin + worker.visible[block.count - 1];
  kernels::PartitionTask task;
  task.k = a.place->k;
  task.v = a.place->v;
  task.queries = worker.queries;
  task.visible = worker.visible;
  task.count = block.count;
  task.pieces = find_pieces(a, block, begin, end, worker);
  task.scale = a.scale;
  task.result = result;
  kernels.attend(task, worker.kernel);
}

bool sees(const Attention& a, const QueryBlock& block, std::uint32_t i, std::uint32_t partition) {
  return static_cast<std::uint32_t>(a.position(block, i)) / kPartition >= partition;
}

void merge_partition(const kernels::Kernels& kernels, const Attention& a, const QueryBlock& block,
                     std::uint32_t partition, const Partial& running, const Partial& next) {
  for (std::uint32_t i = 0; i < block.count; ++i)
    if (sees(a, block, i, partition)) kernels.merge(running, next, i, static_cast<std::uint32_t>(a.stride));
}

void write_out(const Attention& a, const QueryBlock& block, const Partial& done) {
  const std::uint32_t dim = a.place->v.dim;
  for (std::uint32_t i = 0; i < block.count; ++i) {
    float* const to = a.out.row(a.row(block, i)) + std::size_t{a.head(block, i)} * dim;
    const float* const from = done.out + i * done.stride;
    const float factor = 1.0F / done.sum[i];
    for (std::uint32_t d = 0; d < dim; ++d) to[d] = from[d] * factor;
  }
}

// One task does a block's partitions one after the other.
void attend_whole(cpu::State& state, const Attention& a, const std::vector<QueryBlock>& blocks) {
  state.threads->run(static_cast<std::uint32_t>(blocks.size()),
                     [&](std::uint32_t index, std::uint32_t thread) {
                       AttentionWorker& worker = *state.attention_workers[thread];
                       // The last blocks of a prompt see most: they come first, so that threads end together.
                       const QueryBlock& block = blocks[blocks.size() - 1 - index];
                       const Partial running = worker.partial(0, a.stride);
                       const Partial next = worker.partial(1, a.stride);
                       attend_partition(*state.kernels, a, block, 0, running, worker);
                       for (std::uint32_t partition = 1; partition < block.partitions; ++partition) {
                         attend_partition(*state.kernels, a, block, partition, next, worker);
                         merge_partition(*state.kernels, a, block, partition, running, next);
                       }
                       write_out(a, block, running);
                     });
}

// Every partition is a task of its own; a second loop merges them in order. For few
// queries over long sequences, which would leave threads without work.
void attend_split(cpu::State& state, const Attention& a, const std::vector<QueryBlock>& blocks) {
  const std::size_t slots = blocks.back().partial + blocks.back().partitions;
  const std::size_t slot_floats = kQueryBlock * (a.stride + 2);
  state.partials.resize(std::max(state.partials.size(), slots * slot_floats));
  const auto slot = [&](std::size_t index) {
    float* const base = state.partials.data() + index * slot_floats;
    return Partial{base, base + kQueryBlock, base + 2 * kQueryBlock, a.stride};
  };
  std::vector<std::uint32_t> owner;  // block of each slot
  owner.reserve(slots);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) owner.insert(owner.end(), blocks[i].partitions, i);

  state.threads->run(static_cast<std::uint32_t>(slots), [&](std::uint32_t index, std::uint32_t thread) {
    const QueryBlock& block = blocks[owner[index]];
    attend_partition(*state.kernels, a, block, static_cast<std::uint32_t>(index - block.partial), slot(index),
                     *state.attention_workers[thread]);
  });
  state.threads->run(static_cast<std::uint32_t>(blocks.size()), [&](std::uint32_t index, std::uint32_t) {
    const QueryBlock& block = blocks[index];
    const Partial running = slot(block.partial);
    for (std::uint32_t partition = 1; partition < block.partitions; ++partition)
      merge_partition(*state.kernels, a, block, partition, running, slot(block.partial + partition));
    write_out(a, block, running);
  });
}

bool worth_splitting(const Attention& a, const std::vector<QueryBlock>& blocks, std::uint32_t threads) {
  const std::size_t slots = blocks.back().partial + blocks.back().partitions;
  return threads > 1 && slots > blocks.size() && blocks.size() < std::size_t{threads} * 4 &&
         slots * kQueryBlock * (a.stride + 2) <= kMaxPartialFloats;
}

}  // namespace

void Backend::attend(PoolId id, std::uint32_t layer, Rows q, Rows out, const AttentionBatch& batch,
                     const AttentionParams& params) {
  const auto call = impl_->enter();
  Attention a{};
  a.pool = &impl_->pool("attend", id);
  a.place = &impl_->layer("attend", *a.pool, layer);
  a.q = impl_->view("attend", "q", q);
  a.out = impl_->view("attend", "out", out);
  a.batch = &batch;
  a.scale = params.scale;
  if (params.heads == 0 || params.heads % a.place->kv_heads != 0)
    refuse("attend", std::to_string(params.heads) + " heads; needed is a multiple of the layer's " +
                         std::to_string(a.place->kv_heads) + " KV heads");
  if (!std::isfinite(params.scale))
    refuse("attend", "scale " + std::to_string(params.scale) + " must be finite");
  check_features(params);
  a.share = params.heads / a.place->kv_heads;
  a.stride = (a.place->v.dim + kernels::kPanelWidth - 1) / kernels::kPanelWidth * kernels::kPanelWidth;
  cpu::check_width("attend", "q", a.q, std::uint64_t{params.heads} * a.place->k.dim);
  cpu::check_width("attend", "out", a.out, std::uint64_t{params.heads} * a.place->v.dim);
  cpu::check_count("attend", "out", a.out, a.q.count);
  cpu::check_apart("attend", q, out, false);
  check_groups(*a.pool, batch, a.q.count);
  if (std::uint64_t{a.q.count} * a.share > static_cast<std::uint64_t>(kMaxPos))
    refuse("attend", std::to_string(a.q.count) + " rows of " + std::to_string(params.heads) +
                         " heads are too many for one call");
  if (batch.groups.empty()) return;

  const std::vector<QueryBlock> blocks = cut_queries(a);
  if (worth_splitting(a, blocks, impl_->threads->threads())) {
    attend_split(*impl_, a, blocks);
  } else {
    attend_whole(*impl_, a, blocks);
  }
}

}  // namespace pykv
