// Floor 3, private. How many blocks each pool of a cache gets.
#pragma once

#include <cstdint>
#include <vector>

#include "pykv/block_layout.h"
#include "pykv/cache.h"

namespace pykv {

// Of all pools: pool 0 has what `cells` and the byte budget allow, window pools what their
// sequences need at once (at most as many cells as pool 0) beside the resume points.
struct PoolSizes {
  std::vector<BlockLayout> layouts;
  std::vector<Window> windows;
  std::vector<std::uint32_t> blocks;
  std::uint64_t resume_budget = 0;  // bytes
  StateLayout states;
  std::uint32_t state_slots = 0;
};

// Of a checked configuration. Throws InvalidArgument if the budget affords no block.
PoolSizes pool_sizes(const CacheConfig& config);

}  // namespace pykv
