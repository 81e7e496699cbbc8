// Floor 2. One attention call: its parts, and what the kernels are asked to do for one
// partition, whose tokens lie in pieces of consecutive cells.
#pragma once

#include <cstdint>
#include <span>

#include "backend_cpu/attention_cut.h"
#include "backend_cpu/attention_worker.h"
#include "backend_cpu/impl.h"
#include "backend_cpu/query_sets.h"

namespace pykv::cpu {

struct Attention {
  const Pool* pool;
  const BlockLayout::LayerPlace* place;
  RowView q, out;
  const AttentionBatch* batch;
  const AttentionParams* params;
  const Rotations* rotations;
  const float* prepared;  // [rows][heads], as the form of the call says; null: heads as they are
  std::size_t prepared_stride;
  std::uint32_t share;  // query heads per KV head
  std::size_t stride;   // of unnormalized output rows
  AttentionCut* cut;

  std::uint32_t row_in_group(const QueryBlock& block, std::uint32_t i) const {
    return (block.first + i) / share;
  }
  std::uint32_t row(const QueryBlock& block, std::uint32_t i) const {
    return block.group->first_row + row_in_group(block, i);
  }
  std::uint32_t head(const QueryBlock& block, std::uint32_t i) const {
    return block.kv_head * share + (block.first + i) % share;
  }
};

// Fills partitions and blocks of the cut, which must be empty.
void cut_blocks(const Attention& attention);
// Fills the rest: which blocks are done as a whole, who visits what together. attention_visits.cpp.
void choose_visits(const Attention& attention, std::uint32_t threads);

// The first slot of the group that its row `row` sees.
std::uint32_t first_slot_seen(const Attention& attention, const AttentionGroup& group, std::uint32_t row);

// Sets the worker to the queries of blocks of one KV head, at most kQueryBlock: what they see,
// where they stand.
void begin_blocks(const Attention& attention, std::span<const QueryBlock* const> blocks,
                  AttentionWorker& worker);

// Adds K of a partition that will probably be read next to the worker's tiles; not of small pieces.
void look_ahead(const Attention& attention, const QueryBlock& block, std::uint32_t partition,
                AttentionWorker& worker);

// A partition as the kernels take it for these queries, without queries and result; its pieces
// and bounds lie in the worker. `block` is one of the blocks, all of which have the partition's
// tokens in the same cells; several see all of it.
kernels::PartitionTask partition_task(const Attention& attention, const QueryBlock& block,
                                      std::uint32_t partition, AttentionWorker& worker);

// Throws InvalidArgument or Unsupported. attention_check.cpp.
void check_params(const AttentionParams& params, const BlockLayout::LayerPlace& place);
void check_batch(const Pool& pool, const AttentionBatch& batch, std::uint32_t rows,
                 const AttentionParams& params);

}  // namespace pykv::cpu
