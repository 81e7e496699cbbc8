#include "cache/pool_sizes.h"

#include <algorithm>
#include <string>

#include "pykv/errors.h"

namespace pykv {
namespace {

// The default budget of resume points: a share of pool 0, but room for this many points.
constexpr std::uint64_t kResumeShare = 10;
constexpr std::uint64_t kLeastPoints = 2;

std::uint32_t blocks_of(std::uint64_t cells) {
  return static_cast<std::uint32_t>((cells + kBlockCells - 1) / kBlockCells);
}

// Cells that a window needs before the next token.
std::uint64_t behind(Window window) { return window.size - 1; }

class Sizing {
 public:
  Sizing(const CacheConfig& config, PoolSizes& sizes) : config_(config), sizes_(sizes) {}

  // With so many blocks of pool 0; returns the bytes of all pools.
  std::uint64_t size(std::uint32_t base_blocks) {
    const std::uint64_t cells = std::uint64_t{base_blocks} * kBlockCells;
    sizes_.blocks.assign(1, base_blocks);
    sizes_.resume_budget = resume_budget(cells);
    std::uint64_t bytes = std::uint64_t{base_blocks} * sizes_.layouts[0].block_bytes();
    for (std::size_t pool = 1; pool < sizes_.layouts.size(); ++pool) {
      sizes_.blocks.push_back(blocks_of(window_cells(pool, cells)));
      bytes += std::uint64_t{sizes_.blocks.back()} * sizes_.layouts[pool].block_bytes();
    }
    sizes_.state_slots = state_slots(cells);
    return bytes + sizes_.state_slots * sizes_.states.slot_bytes();
  }

 private:
  std::uint64_t point_bytes(std::uint64_t cells) const {
    std::uint64_t bytes = 0;
    for (std::size_t pool = 1; pool < sizes_.layouts.size(); ++pool)
      bytes += std::min(behind(sizes_.windows[pool]), cells) * sizes_.layouts[pool].bytes_per_cell();
    return bytes + sizes_.states.slot_bytes();
  }

  std::uint64_t resume_budget(std::uint64_t cells) const {
    if (config_.resume_bytes) return *config_.resume_bytes;
    const bool is_recurrent = sizes_.states.slot_bytes() != 0;
    if (sizes_.layouts.size() == 1 && !is_recurrent) return 0;
    const std::uint64_t least = kLeastPoints + (is_recurrent ? config_.max_sequences : 0);
    return std::max(cells * sizes_.layouts[0].bytes_per_cell() / kResumeShare, least * point_bytes(cells));
  }

  std::uint64_t window_cells(std::size_t pool, std::uint64_t cells) const {
    if (config_.window_cells != 0) return config_.window_cells;
    const std::uint64_t live = config_.max_sequences * (behind(sizes_.windows[pool]) + config_.step_tokens);
    const std::uint64_t each = std::max<std::uint64_t>(point_bytes(cells), 1);
    const std::uint64_t points = (sizes_.resume_budget + each - 1) / each;
    const std::uint64_t resume = points * std::min(behind(sizes_.windows[pool]), cells);
    return std::min(std::min(live, cells) + resume, kMaxPoolCells);
  }

  // Each sequence has a state and makes another in a step; each point has one.
  std::uint32_t state_slots(std::uint64_t cells) const {
    if (sizes_.states.slot_bytes() == 0) return 0;
    const std::uint64_t points = sizes_.resume_budget / point_bytes(cells);
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(2ULL * config_.max_sequences + points, 1U << 20U));
  }

  const CacheConfig& config_;
  PoolSizes& sizes_;
};

[[noreturn]] void refuse_budget(const CacheConfig& config, std::uint64_t least) {
  throw InvalidArgument("[Cache] pool_bytes is " + std::to_string(config.pool_bytes) + ", one block of " +
                        std::to_string(kBlockCells) + " cells takes " + std::to_string(least) +
                        (config.layers.size() > 1 ? " in all pools" : "") + "; raise it, or 0 for no limit");
}

}  // namespace

PoolSizes pool_sizes(const CacheConfig& config) {
  PoolSizes sizes;
  for (std::uint32_t pool = 0; pool < pool_count(config.layers); ++pool) {
    sizes.layouts.emplace_back(config.layers, pool, config.type_k, config.type_v, config.hadamard);
    sizes.windows.push_back(window_of_pool(config.layers, pool));
  }
  sizes.states = StateLayout(config.recurrent);
  Sizing sizing(config, sizes);
  std::uint32_t blocks = blocks_of(config.cells);
  if (config.pool_bytes != 0 && sizing.size(blocks) > config.pool_bytes) {
    std::uint32_t low = 0;  // the largest number that is affordable; none yet
    for (std::uint32_t high = blocks; high - low > 1;) {
      const std::uint32_t middle = low + (high - low) / 2;
      (sizing.size(middle) <= config.pool_bytes ? low : high) = middle;
    }
    if (low == 0) refuse_budget(config, sizing.size(1));
    blocks = low;
  }
  sizing.size(blocks);
  return sizes;
}

}  // namespace pykv
