#include <algorithm>

#include "backend_cpu/attention_task.h"

namespace pykv {
namespace {

using cpu::Attention;
using cpu::AttentionWorker;
using cpu::QueryBlock;
using cpu::refuse;
using kernels::Partial;

struct Stages {
  decltype(kernels::Kernels::prepare) prepare;
  decltype(kernels::Kernels::convert_int16) convert;
  decltype(kernels::Kernels::score) score;
  decltype(kernels::Kernels::weigh) weigh;
};

Stages stages_of(const kernels::Kernels& kernels, Precision precision) {
  switch (precision) {
    case Precision::fastest:
      return {kernels.prepare_bf16, nullptr, kernels.score_bf16, kernels.weigh_bf16};
    case Precision::fast:
      return {kernels.prepare_int16, kernels.convert_int16, kernels.score_int16, kernels.weigh_int16};
    default:
      return {kernels.prepare, nullptr, kernels.score, kernels.weigh};
  }
}

// Queries [first, first + kQueryTile) of a task, or as many as there are.
kernels::PartitionTask tile_of(const kernels::PartitionTask& task, std::uint32_t first) {
  kernels::PartitionTask tile = task;
  tile.count = std::min(task.count - first, kernels::kQueryTile);
  tile.begins += first;
  tile.ends += first;
  if (task.slopes != nullptr) {
    tile.slopes += first;
    tile.query_positions += first;
  }
  const Partial& all = task.result;
  tile.result = {all.max + first, all.sum + first, all.out + first * all.stride, all.stride};
  return tile;
}

void attend_tile(const Stages& stages, const Attention& a, const kernels::PartitionTask& all,
                 std::uint32_t first, AttentionWorker& worker) {
  kernels::PartitionTask task = tile_of(all, first);
  for (std::size_t begin = 0, end = 0; begin < all.pieces.size(); begin = end) {
    const std::uint32_t rotation = worker.rotations[begin];
    while (end < all.pieces.size() && worker.rotations[end] == rotation) ++end;
    task.queries = worker.queries.get(*a.rotations, rotation) + first;
    task.pieces = all.pieces.subspan(begin, end - begin);
    stages.score(task, worker.kernel);
  }
  task.pieces = all.pieces;
  stages.weigh(task, worker.kernel);
}

// A partition against the queries that the worker stands at.
void attend_partition(const kernels::Kernels& kernels, const Attention& a, const QueryBlock& block,
                      std::uint32_t partition, const Partial& result, AttentionWorker& worker) {
  kernels::PartitionTask task = partition_task(a, block, partition, worker);
  const Stages stages = stages_of(kernels, a.params->precision);
  task.result = result;
  if (task.count > kernels::kQueryTile && stages.convert != nullptr)
    task.converted = stages.convert(task, worker.kernel);
  for (std::uint32_t first = 0; first < task.count; first += kernels::kQueryTile)
    attend_tile(stages, a, task, first, worker);
}

void write_out(const kernels::Kernels& kernels, const Attention& a, const QueryBlock& block,
               const Partial& done) {
  const TileLayout& v = a.place->v;
  for (std::uint32_t i = 0; i < block.count; ++i) {
    const std::uint32_t head = a.head(block, i);
    const float* const sink = a.params->sinks.empty() ? nullptr : &a.params->sinks[head];
    float* const to = a.out.row(a.row(block, i)) + std::size_t{head} * v.dim;
    kernels.normalize(done, i, v.dim, sink, to);
    if (v.hadamard != 0) kernels.hadamard(to, v.hadamard, v.dim / v.hadamard);
  }
}

// All partitions of a block, one after the other.
void attend_whole(cpu::State& state, const Attention& a, const QueryBlock& block, AttentionWorker& worker) {
  const QueryBlock* const only = &block;
  begin_blocks(a, {&only, 1}, worker);
  const Partial running = worker.partial(0, a.stride);
  const Partial next = worker.partial(1, a.stride);
  for (std::uint32_t i = 0; i < block.partitions; ++i) {
    const std::uint32_t partition = block.first_partition + i;
    worker.ahead_count = 0;
    if (i + 1 < block.partitions) look_ahead(a, block, partition + 1, worker);
    attend_partition(*state.kernels, a, block, partition, i == 0 ? running : next, worker);
    if (i != 0) state.kernels->merge(running, next, block.count, static_cast<std::uint32_t>(a.stride));
  }
  write_out(*state.kernels, a, block, running);
}

// The partial results of a visit, from its query `query` on.
Partial partial(cpu::State& state, const Attention& a, const cpu::Visit& visit, std::uint32_t query) {
  float* const base = state.partials.data() + visit.first_query * (a.stride + 2);
  return {base + query, base + visit.queries + query,
          base + 2 * std::size_t{visit.queries} + query * a.stride, a.stride};
}

void merge_visits(cpu::State& state, const Attention& a, const QueryBlock& block) {
  const auto place = [&](std::uint32_t i) {
    const cpu::Place at = a.cut->places[block.first_place + i];
    return partial(state, a, a.cut->visits[at.visit], at.query);
  };
  const Partial running = place(0);
  for (std::uint32_t i = 1; i < block.partitions; ++i)
    state.kernels->merge(running, place(i), block.count, static_cast<std::uint32_t>(a.stride));
  write_out(*state.kernels, a, block, running);
}

// Visits [begin, end), one after the other; `then` is the one that the thread will probably do next.
// Whoever does the last visit of a block merges what all of them gave.
void attend_visits(cpu::State& state, const Attention& a, std::uint32_t begin, std::uint32_t end,
                   std::size_t then, AttentionWorker& worker) {
  cpu::AttentionCut& cut = *a.cut;
  for (std::uint32_t i = begin; i < end; ++i) {
    const cpu::Visit& visit = cut.visits[i];
    const auto blocks = std::span(cut.visitors).subspan(visit.first_block, visit.blocks);
    const std::size_t next = i + 1 < end ? i + 1 : then;
    worker.ahead_count = 0;
    if (next < cut.visits.size())
      look_ahead(a, *cut.visitors[cut.visits[next].first_block], cut.visits[next].partition, worker);
    begin_blocks(a, blocks, worker);
    attend_partition(*state.kernels, a, *blocks.front(), visit.partition, partial(state, a, visit, 0),
                     worker);
    for (const QueryBlock* block : blocks)
      if (cut.left[block->number].fetch_sub(1) == 1) merge_visits(state, a, *block);
  }
}

// Whole blocks come first, the largest one before the others, then visits: some at a time, but many
// such tasks for each thread, so that threads end together.
void run_attention(cpu::State& state, const Attention& a) {
  constexpr std::uint32_t kTasksPerThread = 8;
  cpu::AttentionCut& cut = *a.cut;
  const std::size_t floats = cut.visiting_queries() * (a.stride + 2);
  if (state.partials.size() < floats) state.partials.resize(floats);
  cut.begin_visits();
  const auto whole = static_cast<std::uint32_t>(cut.whole.size());
  const auto visits = static_cast<std::uint32_t>(cut.visits.size());
  const std::uint32_t threads = state.threads->threads();
  const std::uint32_t step = std::max(1U, visits / (threads * kTasksPerThread));
  state.threads->run(whole + cpu::ceil_div(visits, step), [&](std::uint32_t index, std::uint32_t thread) {
    AttentionWorker& worker = *state.attention_workers[thread];
    if (index < whole) return attend_whole(state, a, *cut.whole[index], worker);
    const std::uint32_t begin = (index - whole) * step;
    attend_visits(state, a, begin, std::min(begin + step, visits), std::size_t{begin} + threads * step,
                  worker);
  });
}

// Prepares all queries, along with the operations on rows that make them.
void prepare_queries(cpu::State& state, Rows q, Attention& a, const cpu::QueryForm& form) {
  a.prepared = nullptr;
  if (form.plain()) return;
  const std::uint32_t heads = a.params->heads;
  const std::size_t stride = form.floats();
  const std::size_t floats = std::size_t{a.q.count} * heads * stride;
  if (state.prepared_queries.size() < floats) state.prepared_queries.resize(floats);
  float* const to = state.prepared_queries.data();
  a.prepared = to;
  a.prepared_stride = stride;
  state.defer({q}, [=, rows = a.q, dim = form.place->k.dim](std::uint32_t i) {
    for (std::uint32_t head = 0; head < heads; ++head)
      form.make(rows.row(i) + std::size_t{head} * dim, to + (std::size_t{i} * heads + head) * stride);
  });
}

}  // namespace

void Backend::attend(PoolId id, std::uint32_t layer, Rows q, Rows out, const AttentionBatch& batch,
                     const AttentionParams& params) {
  const auto call = impl_->enter_rows();
  Attention a{};
  a.pool = &impl_->pool("attend", id);
  a.place = &impl_->layer("attend", *a.pool, layer);
  a.q = impl_->view("attend", "q", q);
  a.out = impl_->view("attend", "out", out);
  a.batch = &batch;
  a.params = &params;
  cpu::check_params(params, *a.place);
  a.share = params.heads / a.place->kv_heads;
  a.stride = (a.place->v.dim + kernels::kPanelWidth - 1) / kernels::kPanelWidth * kernels::kPanelWidth;
  cpu::check_width("attend", "q", a.q, std::uint64_t{params.heads} * a.place->k.dim);
  cpu::check_width("attend", "out", a.out, std::uint64_t{params.heads} * a.place->v.dim);
  cpu::check_count("attend", "out", a.out, a.q.count);
  cpu::check_apart("attend", q, out, false);
  if (std::uint64_t{a.q.count} * a.share > static_cast<std::uint64_t>(kMaxPos))
    refuse("attend", std::to_string(a.q.count) + " rows of " + std::to_string(params.heads) +
                         " heads are too many for one call");
  cpu::check_batch(*a.pool, batch, a.q.count, params);
  if (batch.groups.empty()) return;

  cpu::Rotations& rotations = impl_->rotations;
  rotations.set(params.rope, batch.segments);
  a.rotations = &rotations;
  const cpu::QueryForm form{impl_->kernels, a.place, stages_of(*impl_->kernels, params.precision).prepare};
  for (const auto& worker : impl_->attention_workers) worker->queries.begin_call(form, rotations);
  cpu::AttentionCut& cut = impl_->attention_cut;
  cut.clear();
  a.cut = &cut;
  cut_blocks(a);
  choose_visits(a, impl_->threads->threads());
  prepare_queries(*impl_, q, a, form);
  impl_->run_program();
  run_attention(*impl_, a);
}

}  // namespace pykv
