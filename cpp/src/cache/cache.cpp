// Construction, configuration, statistics.
#include "pykv/cache.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check_ropes(const CacheConfig& config) {
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerSpec& layer = config.layers[i];
    if (layer.rope_id >= config.ropes.size() || !stores_kv(layer)) continue;
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

void check_recurrent(const CacheConfig& config) {
  if (!config.recurrent.empty() && config.recurrent.size() != config.layers.size())
    throw InvalidArgument("[Cache] recurrent has " + std::to_string(config.recurrent.size()) +
                          " entries for " + std::to_string(config.layers.size()) +
                          " layers; give one each, or none");
  for (std::size_t i = 0; i < config.layers.size(); ++i)
    if (!stores_kv(config.layers[i]) && (config.recurrent.empty() || config.recurrent[i] == RecurrentSpec{}))
      throw InvalidArgument("[Cache] layer " + std::to_string(i) +
                            ": kv_heads is 0 and it has no recurrent state; give it one of both");
}

CacheConfig checked(CacheConfig config) {
  validate(config.layers);
  check_recurrent(config);
  check_ropes(config);
  validate(config.watermarks);
  if (config.cells < 1 || config.cells > kMaxPoolCells) {
    throw InvalidArgument("[Cache] cells is " + std::to_string(config.cells) + ", must be 1 to " +
                          std::to_string(kMaxPoolCells));
  }
  if (config.window_cells > kMaxPoolCells) {
    throw InvalidArgument("[Cache] window_cells is " + std::to_string(config.window_cells) +
                          ", must be at most " + std::to_string(kMaxPoolCells));
  }
  if (config.max_sequences < 1 || config.step_tokens < 1) {
    throw InvalidArgument("[Cache] max_sequences is " + std::to_string(config.max_sequences) +
                          " and step_tokens " + std::to_string(config.step_tokens) +
                          "; both must be at least 1");
  }
  if (config.edge_hash == nullptr)
    throw InvalidArgument("[Cache] edge_hash is null; leave it at the default");
  if (!config.clock) config.clock = steady_seconds;
  return config;
}

std::uint64_t next_cache_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

namespace {

ResumePoints::Config points_of(const PoolSizes& sizes, std::deque<CellPool>& windows, StatePool& states) {
  ResumePoints::Config config;
  config.state_bytes = sizes.states.slot_bytes();
  config.release_state = [&states](StateSlot slot) { states.drop(slot); };
  config.budget = sizes.resume_budget;
  for (CellPool& pool : windows)
    config.pools.push_back({&pool.cells, pool.window, pool.layout.bytes_per_cell()});
  return config;
}

std::deque<CellPool> window_pools(const PoolSizes& sizes, Backend& machine) {
  std::deque<CellPool> windows;
  for (std::size_t i = 1; i < sizes.blocks.size(); ++i)
    windows.emplace_back(machine, sizes.layouts[i], sizes.windows[i], sizes.blocks[i]);
  return windows;
}

}  // namespace

Cache::Impl::Impl(CacheConfig given, PoolSizes sizes, Backend& machine)
    : config(std::move(given)),
      backend(machine),
      cache_id(next_cache_id()),
      base(machine, sizes.layouts[0], {}, sizes.blocks[0]),
      windows(window_pools(sizes, machine)),
      states(machine, sizes.states, sizes.state_slots),
      tree(base.cells, policy, config.edge_hash),
      points(tree, points_of(sizes, windows, states)) {
  link->cache = this;
}

Cache::Impl::~Impl() {
  const std::lock_guard lock(link->mutex);
  if (open_step != nullptr) open_step->close(Step::Impl::State::rolled_back);
  link->cache = nullptr;
  for (std::size_t i = 0; i < pools(); ++i) pool(i).cells.on_freed({});  // nobody will read them
  sequences.clear();
}

Cache::Cache(CacheConfig config, Backend& backend) {
  config = checked(std::move(config));
  PoolSizes sizes = pool_sizes(config);
  impl_ = std::make_unique<Impl>(std::move(config), std::move(sizes), backend);
}
Cache::~Cache() {
  if (impl_ && impl_->link->birthplace.left()) static_cast<void>(impl_.release());
}

const CacheConfig& Cache::config() const { return impl_->config; }
const BlockLayout& Cache::layout(std::uint32_t pool) const {
  if (pool < impl_->pools()) return impl_->pool(pool).layout;
  throw InvalidArgument(where("layout") + "pool is " + std::to_string(pool) + ", the cache has " +
                        std::to_string(impl_->pools()));
}
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

namespace {

PoolStats stats_of(const Cache::Impl& cache, std::size_t index) {
  const CellPool& pool = cache.pool(index);
  const CellCounts& cells = pool.cells.counts();
  PoolStats s;
  s.window = pool.window;
  s.layers = pool.layout.stored_layers();
  s.cells_capacity = cells.capacity;
  s.cells_computing = cache.open_step != nullptr ? cache.open_step->plan->rows : 0;
  s.cells_active = cells.active - s.cells_computing;
  (index == 0 ? s.cells_idle : s.cells_resume) = cells.idle;
  s.cells_free = cells.free;
  s.bytes_reserved = std::uint64_t{pool.cells.block_count()} * pool.layout.block_bytes();
  s.bytes_committed = pool.committed_blocks() * pool.layout.block_bytes();
  s.bytes_per_cell = pool.layout.bytes_per_cell();
  return s;
}

// What is the sum over all pools and slots, or that of pool 0.
void add_totals(CacheStats& s, const CacheConfig& config) {
  for (const PoolStats& pool : s.pools) {
    s.bytes_reserved += pool.bytes_reserved;
    s.bytes_committed += pool.bytes_committed;
  }
  s.bytes_reserved += s.states.slots * s.states.bytes_per_slot;
  s.bytes_committed += s.states.bytes_committed;
  const PoolStats& base = s.pools.front();
  s.cells_capacity = base.cells_capacity;
  s.cells_computing = base.cells_computing;
  s.cells_active = base.cells_active;
  s.cells_idle = base.cells_idle;
  s.cells_free = base.cells_free;
  s.bytes_per_cell = base.bytes_per_cell;
  s.bytes_budget = config.pool_bytes != 0 ? config.pool_bytes : s.bytes_reserved;
}

}  // namespace

CacheStats memory_plan(const CacheConfig& config) {
  const PoolSizes sizes = pool_sizes(checked(config));
  CacheStats plan;
  for (std::size_t i = 0; i < sizes.layouts.size(); ++i) {
    PoolStats& pool = plan.pools.emplace_back();
    pool.window = sizes.windows[i];
    pool.layers = sizes.layouts[i].stored_layers();
    pool.cells_capacity = pool.cells_free = std::uint64_t{sizes.blocks[i]} * kBlockCells;
    pool.bytes_reserved = std::uint64_t{sizes.blocks[i]} * sizes.layouts[i].block_bytes();
    pool.bytes_per_cell = sizes.layouts[i].bytes_per_cell();
  }
  plan.states.slots = sizes.state_slots;
  plan.states.bytes_per_slot = sizes.states.slot_bytes();
  plan.resume_bytes_budget = sizes.resume_budget;
  add_totals(plan, config);
  return plan;
}

CacheStats Cache::stats() const {
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  CacheStats s;
  s.pools.reserve(c.pools());
  for (std::size_t pool = 0; pool < c.pools(); ++pool) s.pools.push_back(stats_of(c, pool));
  s.states.slots = c.states.counts().slots;
  s.states.slots_used = c.states.counts().used;
  s.states.slots_resume = c.states.is_used() ? c.points.counts().points : 0;
  s.states.bytes_per_slot = c.states.layout.slot_bytes();
  s.states.bytes_committed = c.states.committed_bytes();
  add_totals(s, c.config);
  s.resume_points = c.points.counts().points;
  s.resume_points_made = c.points_made;
  s.resume_points_dropped = c.points.counts().dropped;
  s.resume_points_used = c.points_used;
  s.resume_bytes = c.points.counts().bytes;
  s.resume_bytes_budget = c.points.counts().budget;
  s.match_no_resume_point_tokens = c.match_no_resume_point_tokens;
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
