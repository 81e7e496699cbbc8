// Floor 2. How one attention call is cut up: blocks of queries that read the same KV head,
// partitions that hold a slot, pieces of a partition in consecutive cells.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend_cpu/attention_worker.h"
#include "backend_cpu/impl.h"
#include "backend_cpu/query_sets.h"

namespace pykv::cpu {

inline constexpr std::uint32_t kPartition = kPartitionPositions;

// A partition in which a group has tokens. Empty ones are never visited.
struct Partition {
  std::uint32_t number;   // slots [number * 256, number * 256 + 256)
  std::uint32_t segment;  // of the batch, the group's first with a slot in it
};

// Up to kQueryBlock queries of one group and KV head. Query i of a group is row i / share,
// head i % share of those that read the same KV head.
struct QueryBlock {
  const AttentionGroup* group;
  std::uint32_t kv_head;
  std::uint32_t first;
  std::uint32_t count;
  std::uint32_t first_partition, partitions;  // that its queries see, into Attention::partitions
  std::size_t partial;                        // of the first one, in units of one block and partition
};

struct Attention {
  const Pool* pool;
  const BlockLayout::LayerPlace* place;
  RowView q, out;
  const AttentionBatch* batch;
  const AttentionParams* params;
  const Rotations* rotations;
  std::uint32_t share;                // query heads per KV head
  std::size_t stride;                 // of unnormalized output rows
  std::vector<Partition> partitions;  // of the groups, one after the other
  std::vector<QueryBlock> blocks;

  std::uint32_t row_in_group(const QueryBlock& block, std::uint32_t i) const {
    return (block.first + i) / share;
  }
  std::uint32_t row(const QueryBlock& block, std::uint32_t i) const {
    return block.group->first_row + row_in_group(block, i);
  }
  std::uint32_t head(const QueryBlock& block, std::uint32_t i) const {
    return block.kv_head * share + (block.first + i) % share;
  }
  // All partials of all blocks.
  std::size_t partials() const { return blocks.back().partial + blocks.back().partitions; }
};

// Fills partitions and blocks.
void cut(Attention& attention);

// Sets the worker to a block: its queries, what they see, where they stand.
void begin_block(const Attention& attention, const QueryBlock& block, AttentionWorker& worker);

// The block's `index`-th partition as the kernels take it, without queries and result; its
// pieces and bounds lie in the worker.
kernels::PartitionTask partition_task(const Attention& attention, const QueryBlock& block,
                                      std::uint32_t index, AttentionWorker& worker);

// Throws InvalidArgument or Unsupported. attention_check.cpp.
void check_params(const AttentionParams& params, const BlockLayout::LayerPlace& place);
void check_batch(const Pool& pool, const AttentionBatch& batch, std::uint32_t rows,
                 const AttentionParams& params);

}  // namespace pykv::cpu
