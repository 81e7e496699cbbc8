// An open step: write, attend, and how it ends.
#include <algorithm>
#include <new>
#include <utility>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

std::string at(const char* method) { return std::string("[Step.") + method + "] "; }

void check_rows(const Rows& rows, std::uint32_t count, const char* name, const char* method) {
  if (rows.count == count) return;
  throw InvalidArgument(at(method) + name + " has " + std::to_string(rows.count) + " rows, the step has " +
                        std::to_string(count));
}

void check_width(const Rows& rows, std::uint64_t width, const char* name, const char* method) {
  if (rows.width == width) return;
  throw InvalidArgument(at(method) + name + " is " + std::to_string(rows.width) + " wide, the layer needs " +
                        std::to_string(width));
}

}  // namespace

Cache::Impl& Step::Impl::cache(const char* method) const {
  if (link->cache == nullptr) throw InvalidArgument(at(method) + "the cache of this step is gone");
  if (state != State::open) {
    throw InvalidArgument(at(method) + "the step is over (" +
                          (state == State::finished ? "finished" : "rolled back") + "); commit a new plan");
  }
  return *link->cache;
}

void Step::Impl::check_layer(std::uint32_t layer, const Cache::Impl& owner, const char* method) const {
  if (layer < owner.config.layers.size()) return;
  throw InvalidArgument(at(method) + "layer is " + std::to_string(layer) + ", the cache has " +
                        std::to_string(owner.config.layers.size()) + " layers");
}

const LayerSpec& Step::Impl::check_stored(std::uint32_t layer, const Cache::Impl& owner,
                                          const char* method) const {
  check_layer(layer, owner, method);
  const LayerSpec& spec = owner.config.layers[layer];
  if (!stores_kv(spec))
    throw InvalidArgument(at(method) + "layer " + std::to_string(layer) + " has no K and V");
  if (!spec.kv_from_layer) return spec;
  throw InvalidArgument(at(method) + "layer " + std::to_string(layer) + " takes its K and V from layer " +
                        std::to_string(*spec.kv_from_layer) + "; write that one");
}

void Step::Impl::check_computes(const char* method) const {
  if (plan->imports)
    throw InvalidArgument(at(method) +
                          "the step imports; give it rows by import_rows(), states by write_states()");
}

void Step::Impl::close(State how) {
  Cache::Impl& owner = *link->cache;
  owner.take_back(plan->items);
  state = how;
  owner.open_step = nullptr;
  owner.touch();
}

// O(runs of the step's sequences), so it belongs to attention and not to commit().
const AttentionBatch& Step::Impl::batch(std::size_t pool) {
  std::optional<AttentionBatch>& attention = part(pool).attention;
  if (attention) return *attention;
  AttentionBatch made;
  made.groups.reserve(plan->items.size());
  for (const Plan::Data::Item& item : plan->items) {
    const auto first_segment = static_cast<std::uint32_t>(made.segments.size());
    // A token's slot is its position, plus one for each token before it that shares one.
    std::uint32_t repeats = 0;
    Pos reached = 0;
    Cache::Impl::runs_of(*item.sequence, pool).for_each({0, item.end()}, [&](const Run& run) {
      if (run.first < reached) ++repeats;
      reached = run.end();
      made.segments.push_back(
          {run.first, run.cell, run.length, run.rotation, static_cast<std::uint32_t>(run.first) + repeats});
    });
    const auto segments = static_cast<std::uint32_t>(made.segments.size()) - first_segment;
    made.groups.push_back({item.first_row, item.count, item.first, first_segment, segments,
                           static_cast<std::uint32_t>(item.first) + repeats});
  }
  return attention.emplace(std::move(made));
}

namespace {

void check_only(std::span<const std::uint32_t> only, std::uint32_t rows) {
  for (std::size_t i = 0; i < only.size(); ++i)
    if (only[i] >= rows || (i > 0 && only[i] <= only[i - 1]))
      throw InvalidArgument(at("attend") + "row " + std::to_string(only[i]) +
                            " is out of range or out of order; rows ascend from 0 to " +
                            std::to_string(rows - 1));
}

// The queries of some rows of a batch, numbered anew; neighbours of one sequence are a group.
AttentionBatch of_rows(const AttentionBatch& all, std::span<const std::uint32_t> rows) {
  AttentionBatch some;
  some.segments = all.segments;
  auto group = all.groups.begin();
  for (std::uint32_t i = 0, next = 0; i < rows.size(); i = next) {
    while (group->first_row + group->rows <= rows[i]) ++group;
    const std::uint32_t end = group->first_row + group->rows;
    for (next = i + 1; next < rows.size() && rows[next] == rows[next - 1] + 1 && rows[next] < end;) ++next;
    const std::uint32_t skipped = rows[i] - group->first_row;
    some.groups.push_back({i, next - i, group->first_position + static_cast<Pos>(skipped),
                           group->first_segment, group->segments, group->first_slot + skipped});
  }
  return some;
}

}  // namespace

Step::Step(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Step::Step(Step&&) noexcept = default;

Step::~Step() {
  if (!impl_) return;
  if (impl_->link->birthplace.left())
    static_cast<void>(impl_.release());
  else
    rollback();
}

std::uint32_t Step::rows() const { return impl_->plan->rows; }
std::span<const Pos> Step::positions() const { return impl_->positions; }

const AttentionBatch& Step::attention() const {
  const auto lock = impl_->link->lock();
  impl_->cache("attention");
  return impl_->batch(0);
}

Backend& Step::backend() const {
  const auto lock = impl_->link->lock();
  return impl_->cache("backend").backend;
}

const LayerSpec& Step::layer(std::uint32_t layer) const {
  const auto lock = impl_->link->lock();
  const Cache::Impl& cache = impl_->cache("layer");
  impl_->check_layer(layer, cache, "layer");
  return cache.config.layers[layer];
}

void Step::write(std::uint32_t layer, Rows k, Rows v) {
  const auto lock = impl_->link->lock();
  Cache::Impl& cache = impl_->cache("write");
  impl_->check_computes("write");
  const LayerSpec& spec = impl_->check_stored(layer, cache, "write");
  check_rows(k, rows(), "k", "write");
  check_width(k, std::uint64_t{spec.kv_heads} * spec.k_dim, "k", "write");
  if (spec.v_view_of_k) {
    if (v.width != 0)
      throw InvalidArgument(at("write") + "layer " + std::to_string(layer) +
                            " has V as a view of K; give no v");
  } else {
    check_rows(v, rows(), "v", "write");
    check_width(v, std::uint64_t{spec.kv_heads} * spec.v_dim, "v", "write");
  }
  cache.backend.write_kv(cache.pool_of(layer).id, layer, k, v, impl_->part(spec.pool).cells);
  impl_->written[layer] = true;
}

void Step::import_rows(std::uint32_t layer, std::span<const std::byte> k, std::span<const std::byte> v) {
  const auto lock = impl_->link->lock();
  Cache::Impl& cache = impl_->cache("import_rows");
  const LayerSpec& spec = impl_->check_stored(layer, cache, "import_rows");
  const std::vector<CellIndex>& cells = impl_->part(spec.pool).cells;
  const std::size_t k_bytes =
      row_bytes(cache.config.type_k, std::size_t{spec.kv_heads} * spec.k_dim) * cells.size();
  const std::size_t v_bytes =
      spec.v_view_of_k
          ? 0
          : row_bytes(cache.config.type_v, std::size_t{spec.kv_heads} * spec.v_dim) * cells.size();
  if (k.size() != k_bytes || v.size() != v_bytes) {
    throw InvalidArgument(at("import_rows") + "k and v have " + std::to_string(k.size()) + " and " +
                          std::to_string(v.size()) + " bytes; " + std::to_string(cells.size()) +
                          " rows of layer " + std::to_string(layer) + " have " + std::to_string(k_bytes) +
                          " and " + std::to_string(v_bytes));
  }
  cache.backend.import_rows(cache.pool_of(layer).id, layer, cells, k, v);
  impl_->written[layer] = true;
}

void Step::attend(std::uint32_t layer, Rows q, Rows out, const AttentionParams& params,
                  std::span<const std::uint32_t> only) {
  const auto lock = impl_->link->lock();
  Cache::Impl& cache = impl_->cache("attend");
  impl_->check_computes("attend");
  impl_->check_layer(layer, cache, "attend");
  const LayerSpec& spec = cache.config.layers[layer];
  if (!stores_kv(spec))
    throw InvalidArgument(at("attend") + "layer " + std::to_string(layer) + " has no K and V");
  const std::uint32_t source = spec.kv_from_layer.value_or(layer);
  if (!impl_->written[source]) {
    throw InvalidArgument(at("attend") + "layer " + std::to_string(source) +
                          " was not written in this step; write() first");
  }
  if (params.heads == 0 || params.heads % spec.kv_heads != 0) {
    throw InvalidArgument(at("attend") + "heads is " + std::to_string(params.heads) +
                          ", must be a multiple of the layer's " + std::to_string(spec.kv_heads) +
                          " KV heads");
  }
  check_only(only, rows());
  const auto queries = only.empty() ? rows() : static_cast<std::uint32_t>(only.size());
  check_rows(q, queries, "q", "attend");
  check_rows(out, queries, "out", "attend");
  check_width(q, std::uint64_t{params.heads} * spec.k_dim, "q", "attend");
  check_width(out, std::uint64_t{params.heads} * spec.v_dim, "out", "attend");
  if (spec.sinks == params.sinks.empty()) {
    throw InvalidArgument(at("attend") + "layer " + std::to_string(layer) + " has " +
                          (spec.sinks ? "sinks; give one for each head" : "no sinks; give none"));
  }
  AttentionParams complete = params;
  complete.window = spec.window();
  complete.rope = cache.rope(source);
  const AttentionBatch& all = impl_->batch(spec.pool);
  const PoolId pool = cache.pool_of(layer).id;
  if (only.empty()) return cache.backend.attend(pool, layer, q, out, all, complete);
  cache.backend.attend(pool, layer, q, out, of_rows(all, only), complete);
}

void Step::finish() {
  const auto lock = impl_->link->lock();
  Cache::Impl& cache = impl_->cache("finish");
  for (std::uint32_t layer = 0; layer < impl_->written.size(); ++layer) {
    const LayerSpec& spec = cache.config.layers[layer];
    if (impl_->written[layer] || spec.kv_from_layer || !stores_kv(spec)) continue;
    throw InvalidArgument(at("finish") + "layer " + std::to_string(layer) +
                          " was not written; write every layer or roll back");
  }
  impl_->check_states_done(cache);
  for (const Plan::Data::Item& item : impl_->plan->items) {
    item.sequence->in_step.reset();
    if (cache.states.is_used()) item.sequence->state = std::move(item.sequence->next_state);
    cache.publish(*impl_->plan, item);
    if (cache.forgets()) cache.add_points(*item.sequence, item.first);
  }
  impl_->close(Impl::State::finished);
}

void Step::rollback() {
  const auto lock = impl_->link->lock();
  if (impl_->link->cache == nullptr || impl_->state != Impl::State::open) return;
  impl_->close(Impl::State::rolled_back);
}

void Cache::Impl::publish(const Plan::Data& plan, const Plan::Data::Item& item) {
  Sequence& sequence = *item.sequence;
  sequence.published_from = kMaxPos;
  if (!item.exact || sequence.exact_upto != item.first) {
    withdraw_announcement(sequence);
    return;
  }
  try {
    const std::span<const Token> tokens = plan.tokens_of(item);
    const auto end = static_cast<std::size_t>(item.end());
    const bool announced = sequence.announced && end <= sequence.announced->size() &&
                           std::equal(tokens.begin(), tokens.end(), sequence.announced->begin() + item.first);
    if (!announced) {
      withdraw_announcement(sequence);
      if (sequence.exact_upto != item.first) return;
      tree.grow(sequence.holder, sequence.name_space, tokens);
    }
    scratch.runs.clear();
    Pos next = item.first;
    for (const CellSpan span : plan.cells_of(item)) {
      scratch.runs.push_back({next, span.begin, span.length, 0});
      next = scratch.runs.back().end();
    }
    const std::uint32_t ready =
        tree.publish(sequence.holder, static_cast<std::uint32_t>(item.first), scratch.runs, now());
    if (ready < item.count) adopt_path(sequence, item.first, item.end());
    sequence.exact_upto = item.end();
    sequence.published_from = item.end() - static_cast<Pos>(ready);
    if (announced && end == sequence.announced->size()) sequence.announced.reset();
  } catch (const std::bad_alloc&) {
    settle(sequence);
  }
}

// Others have made some of these tokens ready: their KV is the same, so it is stored once.
void Cache::Impl::adopt_path(Sequence& sequence, Pos begin, Pos end) {
  RunList runs = sequence.runs;
  runs.truncate(begin);
  for (const Run& run :
       tree.path_runs(sequence.holder, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end))) {
    runs.append(run, RunList::Hold::share);
  }
  std::swap(sequence.runs, runs);
}

}  // namespace pykv
