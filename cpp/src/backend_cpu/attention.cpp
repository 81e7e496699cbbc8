#include "backend_cpu/attention_task.h"

namespace pykv {
namespace {

using cpu::Attention;
using cpu::AttentionWorker;
using cpu::QueryBlock;
using cpu::refuse;
using kernels::kQueryBlock;
using kernels::Partial;

constexpr std::size_t kMaxPartialFloats = std::size_t{1} << 24;  // 64 MiB

// The block's `index`-th partition; the worker stands at the block.
void attend_partition(const kernels::Kernels& kernels, const Attention& a, const QueryBlock& block,
                      std::uint32_t index, const Partial& result, AttentionWorker& worker) {
  kernels::PartitionTask task = partition_task(a, block, index, worker);
  task.result = result;
  const std::span<const kernels::KvPiece> pieces = task.pieces;
  for (std::size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
    const std::uint32_t rotation = worker.rotations[begin];
    while (end < pieces.size() && worker.rotations[end] == rotation) ++end;
    task.queries = worker.queries.get(*a.rotations, rotation);
    task.pieces = pieces.subspan(begin, end - begin);
    kernels.score(task, worker.kernel);
  }
  task.pieces = pieces;
  kernels.weigh(task, worker.kernel);
}

void merge_partition(const kernels::Kernels& kernels, const Attention& a, const QueryBlock& block,
                     const Partial& running, const Partial& next) {
  for (std::uint32_t i = 0; i < block.count; ++i)
    kernels.merge(running, next, i, static_cast<std::uint32_t>(a.stride));
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

// One task does a block's partitions one after the other.
void attend_whole(cpu::State& state, const Attention& a) {
  state.threads->run(static_cast<std::uint32_t>(a.blocks.size()),
                     [&](std::uint32_t index, std::uint32_t thread) {
                       AttentionWorker& worker = *state.attention_workers[thread];
                       // The last blocks of a prompt see most: they come first, so that threads end together.
                       const QueryBlock& block = a.blocks[a.blocks.size() - 1 - index];
                       begin_block(a, block, worker);
                       const Partial running = worker.partial(0, a.stride);
                       const Partial next = worker.partial(1, a.stride);
                       attend_partition(*state.kernels, a, block, 0, running, worker);
                       for (std::uint32_t partition = 1; partition < block.partitions; ++partition) {
                         attend_partition(*state.kernels, a, block, partition, next, worker);
                         merge_partition(*state.kernels, a, block, running, next);
                       }
                       write_out(*state.kernels, a, block, running);
                     });
}

// Every partition is a task of its own; a second loop merges them in order. For few
// queries over long sequences, which would leave threads without work.
void attend_split(cpu::State& state, const Attention& a) {
  const std::size_t slots = a.partials();
  const std::size_t slot_floats = kQueryBlock * (a.stride + 2);
  state.partials.resize(std::max(state.partials.size(), slots * slot_floats));
  const auto slot = [&](std::size_t index) {
    float* const base = state.partials.data() + index * slot_floats;
    return Partial{base, base + kQueryBlock, base + 2 * kQueryBlock, a.stride};
  };
  std::vector<std::uint32_t> owner;  // block of each slot
  owner.reserve(slots);
  for (std::uint32_t i = 0; i < a.blocks.size(); ++i) owner.insert(owner.end(), a.blocks[i].partitions, i);

  state.threads->run(static_cast<std::uint32_t>(slots), [&](std::uint32_t index, std::uint32_t thread) {
    const QueryBlock& block = a.blocks[owner[index]];
    AttentionWorker& worker = *state.attention_workers[thread];
    begin_block(a, block, worker);
    attend_partition(*state.kernels, a, block, static_cast<std::uint32_t>(index - block.partial), slot(index),
                     worker);
  });
  state.threads->run(static_cast<std::uint32_t>(a.blocks.size()), [&](std::uint32_t index, std::uint32_t) {
    const QueryBlock& block = a.blocks[index];
    const Partial running = slot(block.partial);
    for (std::uint32_t partition = 1; partition < block.partitions; ++partition)
      merge_partition(*state.kernels, a, block, running, slot(block.partial + partition));
    write_out(*state.kernels, a, block, running);
  });
}

bool worth_splitting(const Attention& a, std::uint32_t threads) {
  const std::size_t slots = a.partials();
  return threads > 1 && slots > a.blocks.size() && a.blocks.size() < std::size_t{threads} * 4 &&
         slots * kQueryBlock * (a.stride + 2) <= kMaxPartialFloats;
}

}  // namespace

void Backend::attend(PoolId id, std::uint32_t layer, Rows q, Rows out, const AttentionBatch& batch,
                     const AttentionParams& params) {
  const auto call = impl_->enter();
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

  const cpu::Rotations rotations(params.rope, batch.segments);
  a.rotations = &rotations;
  for (const auto& worker : impl_->attention_workers)
    worker->queries.prepare(*impl_->kernels, rotations, a.place->k);
  cut(a);
  if (worth_splitting(a, impl_->threads->threads())) {
    attend_split(*impl_, a);
  } else {
    attend_whole(*impl_, a);
  }
}

}  // namespace pykv
