// Floor 2. What one thread needs to attend; kept from call to call, touched when used.
#pragma once

#include "backend_cpu/query_sets.h"
#include "kernels/kernels.h"

namespace pykv::cpu {

struct AttentionWorker {
  kernels::AttentionScratch kernel;
  QuerySets queries;
  std::uint32_t count;  // queries in work
  // Of each of them: the first slot it sees, its own, its position.
  std::uint32_t first_slots[kernels::kQueryBlock];
  std::uint32_t own_slots[kernels::kQueryBlock];
  Pos positions[kernels::kQueryBlock];
  float slopes[kernels::kQueryBlock];
  // Of the partition in work.
  std::uint32_t begins[kernels::kQueryBlock];
  std::uint32_t ends[kernels::kQueryBlock];
  kernels::KvPiece pieces[kPartitionPositions];
  std::uint32_t rotations[kPartitionPositions];  // index of each piece's
  Pos key_positions[kPartitionPositions];
  // K of what is probably read after it.
  static constexpr std::size_t kTilesAhead = kPartitionPositions / kBlockCells;
  const std::byte* ahead[kTilesAhead];
  std::size_t ahead_count = 0;
  float max[2][kernels::kQueryBlock];
  float sum[2][kernels::kQueryBlock];
  float out[2][kernels::kQueryBlock * kernels::kMaxVDim];

  kernels::Partial partial(int which, std::size_t stride) {
    return {max[which], sum[which], out[which], stride};
  }
};

}  // namespace pykv::cpu
