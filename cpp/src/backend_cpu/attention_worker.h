// Floor 2. What one thread needs to attend; kept from call to call.
#pragma once

#include "kernels/kernels.h"

namespace pykv::cpu {

struct AttentionWorker {
  kernels::AttentionScratch kernel;
  const float* queries[kernels::kQueryBlock];
  std::uint32_t visible[kernels::kQueryBlock];
  kernels::KvPiece pieces[kPartitionPositions];
  float max[2][kernels::kQueryBlock];
  float sum[2][kernels::kQueryBlock];
  float out[2][kernels::kQueryBlock * kernels::kMaxHeadDim];

  kernels::Partial partial(int which, std::size_t stride) {
    return {max[which], sum[which], out[which], stride};
  }
};

}  // namespace pykv::cpu
