// Construction, configuration, statistics.
#include "pykv/cache.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

// Keeps the bookkeeping, which is made at once, below a gigabyte.
constexpr std::uint64_t kMaxCells = std::uint64_t{1} << 27;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check_ropes(const CacheConfig& config) {
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerSpec& layer = config.layers[i];
    if (layer.rope_id >= config.ropes.size()) continue;
    const RopeParams& rope = config.ropes[layer.rope_id];
    const std::string at = "[Cache] layer " + std::to_string(i) + ": ";
    validate(rope, layer.k_dim, at);
    if (layer.v_view_of_k && rope.dims != 0 && rope.offset < layer.v_dim) {
      throw InvalidArgument(at + "rope turns element " + std::to_string(rope.offset) +
                            " of K, which is one of the " + std::to_string(layer.v_dim) +
                            " elements of V; it must begin behind them");
    }
  }
}

CacheConfig checked(CacheConfig config) {
  validate(config.layers);
  check_ropes(config);
  validate(config.watermarks);
  if (config.cells < 1 || config.cells > kMaxCells) {
    throw InvalidArgument("[Cache] cells is " + std::to_string(config.cells) + ", must be 1 to " +
                          std::to_string(kMaxCells));
  }
  if (config.edge_hash == nullptr)
    throw InvalidArgument("[Cache] edge_hash is null; leave it at the default");
  if (!config.clock) config.clock = steady_seconds;
  return config;
}

std::uint32_t block_count(const CacheConfig& config, const BlockLayout& layout) {
  const std::uint64_t wanted = (config.cells + kBlockCells - 1) / kBlockCells;
  if (config.pool_bytes == 0) return static_cast<std::uint32_t>(wanted);
  const std::uint64_t affordable = config.pool_bytes / layout.block_bytes();
  if (affordable == 0) {
    throw InvalidArgument("[Cache] pool_bytes is " + std::to_string(config.pool_bytes) + ", one block of " +
                          std::to_string(kBlockCells) + " cells takes " +
                          std::to_string(layout.block_bytes()) + "; raise it, or 0 for no limit");
  }
  return static_cast<std::uint32_t>(std::min(wanted, affordable));
}

std::uint64_t next_cache_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Cache::Impl::Impl(CacheConfig given, Backend& machine)
    : config(checked(std::move(given))),
      backend(machine),
      layout(config.layers, 0, config.type_k, config.type_v, config.hadamard),
      cache_id(next_cache_id()),
      cells(block_count(config, layout)),
      tree(cells, policy, config.edge_hash),
      committed(cells.block_count()) {
  link->cache = this;
  pool = backend.create_pool(layout, cells.block_count());
  if constexpr (PYKV_POISON)
    cells.on_freed([this](BlockIndex block, std::uint64_t freed) { poison(block, freed); });
}

Cache::Impl::~Impl() {
  const std::lock_guard lock(link->mutex);
  if (open_step != nullptr) open_step->close(Step::Impl::State::rolled_back);
  link->cache = nullptr;
  cells.on_freed({});  // the pool goes before the tree does
  sequences.clear();
  backend.destroy_pool(pool);
}

Cache::Cache(CacheConfig config, Backend& backend)
    : impl_(std::make_unique<Impl>(std::move(config), backend)) {}
Cache::~Cache() {
  if (impl_ && impl_->link->birthplace.left()) static_cast<void>(impl_.release());
}

const CacheConfig& Cache::config() const { return impl_->config; }
const BlockLayout& Cache::layout() const { return impl_->layout; }
Backend& Cache::backend() const { return impl_->backend; }

void Cache::set_watermarks(const Watermarks& marks) {
  validate(marks);
  const auto lock = impl_->link->lock();
  impl_->config.watermarks = marks;
  impl_->touch();
}

Watermarks Cache::watermarks() const {
  const auto lock = impl_->link->lock();
  return impl_->config.watermarks;
}

CacheStats Cache::stats() const {
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  const CellCounts& cells = c.cells.counts();
  CacheStats s;
  s.cells_capacity = cells.capacity;
  s.cells_computing = c.open_step != nullptr ? c.open_step->plan->rows : 0;
  s.cells_active = cells.active - s.cells_computing;
  s.cells_idle = cells.idle;
  s.cells_free = cells.free;
  s.bytes_reserved = std::uint64_t{c.cells.block_count()} * c.layout.block_bytes();
  s.bytes_committed = c.committed_blocks * c.layout.block_bytes();
  s.bytes_per_cell = c.layout.bytes_per_cell();
  s.bytes_budget = c.config.pool_bytes != 0 ? c.config.pool_bytes : s.bytes_reserved;
  s.sequences = c.sequences.size();
  s.tree_nodes = c.tree.counts().nodes;
  s.tree_tokens = c.tree.counts().ready_tokens;
  s.evicted_cells_watermark = c.evicted_cells[static_cast<int>(EvictReason::watermark)];
  s.evicted_cells_demand = c.evicted_cells[static_cast<int>(EvictReason::demand)];
  s.evicted_cells_request = c.evicted_cells[static_cast<int>(EvictReason::request)];
  s.match_query_tokens = c.match_query_tokens;
  s.match_hit_tokens = c.match_hit_tokens;
  s.alloc_failures = c.alloc_failures;
  s.reclaim_ticks = c.reclaim_ticks;
  s.reclaim_runs = c.reclaim_runs;
  s.cells_copied = c.cells_copied;
  s.compactions = c.compactions;
  s.compacted_cells = c.compacted_cells;
  s.k_bytes_rewritten = c.k_bytes_rewritten;
  s.generation = c.generation;
  return s;
}

}  // namespace pykv
