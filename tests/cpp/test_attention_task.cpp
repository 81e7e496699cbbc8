// How attention is cut up: which partitions are visited, what of them is read, how often
// queries are turned.
#include <cmath>
#include <memory>
#include <vector>

#include "backend_cpu/attention_task.h"
#include "backend_cpu/rotary.h"
#include "check.h"

using namespace pykv;
using namespace pykv::cpu;

namespace {

constexpr std::uint32_t kDim = 16;
constexpr std::uint32_t kHeads = 4;

LayerTable one_layer() {
  LayerSpec spec;
  spec.kv_heads = 2;
  spec.k_dim = spec.v_dim = kDim;
  return {spec};
}

// One group's attention; nothing is computed, so that cells need no memory.
struct Cut {
  Cut(std::vector<Segment> segments, AttentionGroup group, const AttentionParams& given = {})
      : pool{BlockLayout(one_layer(), 0, DType::f32, DType::f32), 64, MappedMemory::reserve(1 << 24), {}},
        params(given),
        rotations(params.rope, segments),
        q(std::size_t{group.rows} * kHeads * kDim),
        worker(std::make_unique<AttentionWorker>()) {
    batch.segments = std::move(segments);
    batch.groups = {group};
    a.pool = &pool;
    a.place = &pool.layout.place(0);
    a.q = a.out = {q.data(), std::size_t{kHeads} * kDim, group.rows, kHeads * kDim};
    a.batch = &batch;
    a.params = &params;
    a.rotations = &rotations;
    a.share = kHeads / a.place->kv_heads;
    a.stride = kDim;
    cut(a);
    worker->queries.prepare(*kernels::scalar_kernels(), rotations, a.place->k);
  }

  kernels::PartitionTask task(const QueryBlock& block, std::uint32_t index) {
    begin_block(a, block, *worker);
    return partition_task(a, block, index, *worker);
  }

  Pool pool;
  AttentionBatch batch;
  AttentionParams params;
  Rotations rotations;
  std::vector<float> q;
  std::unique_ptr<AttentionWorker> worker;
  Attention a{};
};

std::uint32_t slots(const kernels::PartitionTask& task) {
  std::uint32_t n = 0;
  for (const kernels::KvPiece& piece : task.pieces) n += piece.length;
  return n;
}

}  // namespace

TEST(partitions_outside_a_window_are_not_visited) {
  AttentionParams params;
  params.window = {WindowKind::standard, 70};
  Cut cut({{0, 0, 2000, 0, 0}}, {0, 60, 1500, 0, 1, 1500}, params);
  CHECK(cut.a.blocks.size() == 4);  // 120 queries for each of two KV heads
  for (const QueryBlock& block : cut.a.blocks) {
    const std::uint32_t first = 1500 + cut.a.row_in_group(block, 0);
    const std::uint32_t last = 1500 + cut.a.row_in_group(block, block.count - 1);
    CHECK(cut.a.partitions[block.first_partition].number == (first - 69) / 256);
    CHECK(block.partitions == last / 256 - (first - 69) / 256 + 1);
    std::uint32_t read = 0;
    for (std::uint32_t index = 0; index < block.partitions; ++index) read += slots(cut.task(block, index));
    CHECK(read == last - first + 70);  // from the first row's window to the last row
  }
}

TEST(a_chunked_window_visits_its_chunk) {
  AttentionParams params;
  params.window = {WindowKind::chunked, 512};
  Cut cut({{0, 0, 2000, 0, 0}}, {0, 1, 1300, 0, 1, 1300}, params);
  const QueryBlock& block = cut.a.blocks.front();
  CHECK(block.partitions == 2 && cut.a.partitions[block.first_partition].number == 4);
  CHECK(slots(cut.task(block, 0)) == 256 && slots(cut.task(block, 1)) == 21);
}

TEST(gaps_are_stepped_over_however_long_they_are) {
  constexpr Pos kFar = 2000000000;
  Cut cut({{5, 0, 20, 0, 5}, {kFar, 64, 10, 0, kFar}}, {0, 10, kFar, 0, 2, kFar});
  CHECK(cut.a.partitions.size() == 2);
  const QueryBlock& block = cut.a.blocks.front();
  CHECK(block.partitions == 2);
  const kernels::PartitionTask first = cut.task(block, 0);
  CHECK(slots(first) == 20 && !first.gaps && first.begins[0] == 5 && first.ends[0] == 25);
}

TEST(what_all_see_has_no_bounds_inside) {
  Cut cut({{0, 0, 600, 0, 0}}, {0, 32, 568, 0, 1, 568});
  const QueryBlock& block = cut.a.blocks.front();
  CHECK(block.partitions == 3);
  for (std::uint32_t index = 0; index < 2; ++index) {
    const kernels::PartitionTask task = cut.task(block, index);
    CHECK(!task.gaps && task.pieces.size() == 4);
    for (std::uint32_t i = 0; i < task.count; ++i) CHECK(task.begins[i] == 0 && task.ends[i] == 256);
  }
}

TEST(a_query_between_pieces_sees_nothing_of_the_partition) {
  AttentionParams params;
  params.window = {WindowKind::standard, 30};
  // Slots 0 … 9, then 100 … 259. Rows from 250 on see back to 221 and further.
  Cut cut({{0, 0, 10, 0, 0}, {100, 64, 160, 0, 100}}, {0, 8, 252, 0, 2, 252}, params);
  const QueryBlock& block = cut.a.blocks.front();
  const kernels::PartitionTask task = cut.task(block, 0);
  CHECK(slots(task) == 256 - 223);
  for (std::uint32_t i = 1; i < task.count; ++i)
    CHECK(task.begins[i] >= task.begins[i - 1] && task.ends[i] >= task.ends[i - 1]);

  Cut early({{0, 0, 10, 0, 0}, {40, 64, 160, 0, 40}}, {0, 4, 40, 0, 2, 40}, params);
  const kernels::PartitionTask mixed = early.task(early.a.blocks.front(), 0);
  // Row 40 sees from 11 on, which is in the gap: only itself.
  CHECK(mixed.begins[0] == 40 && mixed.ends[0] == 41);
}

TEST(queries_are_turned_once_for_each_rotation_and_rightly_for_many) {
  RopeParams rope{.dims = kDim};
  AttentionParams params;
  params.rope = &rope;
  std::vector<Segment> segments;
  for (std::uint32_t i = 0; i < 40; ++i)
    segments.push_back({static_cast<Pos>(i), i, 1, static_cast<Pos>(i % 7) - 3, i});
  Cut cut(segments, {0, 1, 39, 0, 40, 39}, params);
  CHECK(cut.rotations.size() == 7);
  for (std::size_t j = 0; j < cut.q.size(); ++j) cut.q[j] = static_cast<float>(j % 11) - 5.0F;
  const QueryBlock& block = cut.a.blocks.front();
  const kernels::PartitionTask task = cut.task(block, 0);
  CHECK(task.count == 2 && task.pieces.size() == 40);
  QuerySets& sets = cut.worker->queries;
  for (const Segment& segment : segments) {
    const std::uint32_t index = cut.rotations.index(segment.rotation);
    const float* const* const turned = sets.get(cut.rotations, index);
    CHECK(turned == sets.get(cut.rotations, index));
    if (segment.rotation == 0) CHECK(turned[1] == cut.a.q.row(0) + kDim);  // no copy
    std::vector<float> expected(turned[1], turned[1] + kDim);
    rotate_head(expected.data(), rope, cos_sin(rope, std::vector<Pos>{segment.rotation}).data());
    for (std::uint32_t d = 0; d < kDim; ++d) CHECK(std::abs(expected[d] - cut.q[kDim + d]) < 1e-5F);
  }
  const std::vector<Pos> kept{-3, -2, -1, 1};  // four sets: none of them is made again
  std::vector<const float* const*> first;
  begin_block(cut.a, block, *cut.worker);
  for (const Pos r : kept) first.push_back(sets.get(cut.rotations, cut.rotations.index(r)));
  for (int round = 0; round < 3; ++round)
    for (std::size_t i = 0; i < kept.size(); ++i)
      CHECK(sets.get(cut.rotations, cut.rotations.index(kept[i])) == first[i]);
}
