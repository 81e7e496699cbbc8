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

// An attention call; nothing is computed, so that cells need no memory.
struct Cut {
  Cut(std::vector<Segment> segments, AttentionGroup group, const AttentionParams& given = {})
      : Cut(std::move(segments), std::vector<AttentionGroup>{group}, given) {}
  Cut(std::vector<Segment> segments, std::vector<AttentionGroup> groups, const AttentionParams& given = {},
      std::uint32_t threads = 1)
      : pool{BlockLayout(one_layer(), 0, DType::f32, DType::f32), 64, MappedMemory::reserve(1 << 24), {}},
        params(given),
        rows(groups.back().first_row + groups.back().rows),
        q(std::size_t{rows} * kHeads * kDim),
        worker(std::make_unique<AttentionWorker>()) {
    batch.segments = std::move(segments);
    rotations.set(params.rope, batch.segments);
    batch.groups = std::move(groups);
    a.pool = &pool;
    a.place = &pool.layout.place(0);
    a.q = a.out = {q.data(), std::size_t{kHeads} * kDim, rows, kHeads * kDim};
    a.batch = &batch;
    a.params = &params;
    a.rotations = &rotations;
    a.share = kHeads / a.place->kv_heads;
    a.stride = kDim;
    a.cut = &made;
    cut_blocks(a);
    choose_visits(a, threads);
    const kernels::Kernels* const scalar = kernels::scalar_kernels();
    worker->queries.begin_call({scalar, a.place, scalar->prepare}, rotations);
  }

  kernels::PartitionTask task(const QueryBlock& block, std::uint32_t index) {
    begin(block);
    return partition_task(a, block, block.first_partition + index, *worker);
  }

  void begin(const QueryBlock& block) {
    const QueryBlock* const only = &block;
    begin_blocks(a, {&only, 1}, *worker);
  }

  Pool pool;
  AttentionBatch batch;
  AttentionParams params;
  Rotations rotations;
  std::uint32_t rows;
  std::vector<float> q;
  std::unique_ptr<AttentionWorker> worker;
  AttentionCut made;
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
  Cut cut({{0, 0, 2000, 0, 0}}, {0, 180, 1500, 0, 1, 1500}, params);
  CHECK(cut.made.blocks.size() == 4);  // 360 queries for each of two KV heads
  for (const QueryBlock& block : cut.made.blocks) {
    const std::uint32_t first = 1500 + cut.a.row_in_group(block, 0);
    const std::uint32_t last = 1500 + cut.a.row_in_group(block, block.count - 1);
    CHECK(cut.made.partitions[block.first_partition].number == (first - 69) / 256);
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
  const QueryBlock& block = cut.made.blocks.front();
  CHECK(block.partitions == 2 && cut.made.partitions[block.first_partition].number == 4);
  CHECK(slots(cut.task(block, 0)) == 256 && slots(cut.task(block, 1)) == 21);
}

TEST(gaps_are_stepped_over_however_long_they_are) {
  constexpr Pos kFar = 2000000000;
  Cut cut({{5, 0, 20, 0, 5}, {kFar, 64, 10, 0, kFar}}, {0, 10, kFar, 0, 2, kFar});
  CHECK(cut.made.partitions.size() == 2);
  const QueryBlock& block = cut.made.blocks.front();
  CHECK(block.partitions == 2);
  const kernels::PartitionTask first = cut.task(block, 0);
  CHECK(slots(first) == 20 && !first.gaps && first.begins[0] == 5 && first.ends[0] == 25);
}

TEST(what_all_see_has_no_bounds_inside) {
  Cut cut({{0, 0, 600, 0, 0}}, {0, 32, 568, 0, 1, 568});
  const QueryBlock& block = cut.made.blocks.front();
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
  const QueryBlock& block = cut.made.blocks.front();
  const kernels::PartitionTask task = cut.task(block, 0);
  CHECK(slots(task) == 256 - 223);
  for (std::uint32_t i = 1; i < task.count; ++i)
    CHECK(task.begins[i] >= task.begins[i - 1] && task.ends[i] >= task.ends[i - 1]);

  Cut early({{0, 0, 10, 0, 0}, {40, 64, 160, 0, 40}}, {0, 4, 40, 0, 2, 40}, params);
  const kernels::PartitionTask mixed = early.task(early.made.blocks.front(), 0);
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
  const QueryBlock& block = cut.made.blocks.front();
  const kernels::PartitionTask task = cut.task(block, 0);
  CHECK(task.count == 2 && task.pieces.size() == 40);
  QuerySets& sets = cut.worker->queries;
  for (const Segment& segment : segments) {
    const std::uint32_t index = cut.rotations.index(segment.rotation);
    const float* const* const turned = sets.get(cut.rotations, index);
    CHECK(turned == sets.get(cut.rotations, index));
    if (segment.rotation == 0) CHECK(turned[1] == cut.a.q.row(0) + kDim);  // no copy
    std::vector<float> expected(turned[1], turned[1] + kDim);
    const HeadTurn turn(rope);
    std::vector<float> angles;
    fill_cos_sin(rope, std::vector<Pos>{segment.rotation}, angles);
    turn(expected.data(), angles.data());
    for (std::uint32_t d = 0; d < kDim; ++d) CHECK(std::abs(expected[d] - cut.q[kDim + d]) < 1e-5F);
  }
  const std::vector<Pos> kept{-3, -2, -1, 1};  // four sets: none of them is made again
  std::vector<const float* const*> first;
  cut.begin(block);
  for (const Pos r : kept) first.push_back(sets.get(cut.rotations, cut.rotations.index(r)));
  for (int round = 0; round < 3; ++round)
    for (std::size_t i = 0; i < kept.size(); ++i)
      CHECK(sets.get(cut.rotations, cut.rotations.index(kept[i])) == first[i]);
}

namespace {

// How many groups read partition `number` in each visit of KV head 0, the largest first.
std::vector<std::uint32_t> companies(const Cut& cut, std::uint32_t number) {
  std::vector<std::uint32_t> found;
  for (const Visit& visit : cut.made.visits)
    if (cut.made.partitions[visit.partition].number == number &&
        cut.made.visitors[visit.first_block]->kv_head == 0)
      found.push_back(visit.blocks);
  std::sort(found.rbegin(), found.rend());
  return found;
}

using Companies = std::vector<std::uint32_t>;

// A session with one new token behind a prefix of 600 in cells [0, 600), the rest at `cell`.
void add_session(std::vector<Segment>& segments, std::vector<AttentionGroup>& groups, CellIndex cell,
                 Pos rotation = 0) {
  const auto first = static_cast<std::uint32_t>(segments.size());
  const auto row = static_cast<std::uint32_t>(groups.size());
  segments.push_back({0, 0, 600, rotation, 0});
  segments.push_back({600, cell, 300, 0, 600});
  groups.push_back({row, 1, 899, first, 2, 899});
}

}  // namespace

TEST(groups_visit_together_what_they_have_in_the_same_cells) {
  std::vector<Segment> segments;
  std::vector<AttentionGroup> groups;
  for (const CellIndex cell : {640U, 640U, 1000U}) add_session(segments, groups, cell);
  const Cut cut(segments, groups);
  CHECK(cut.made.whole.empty() && cut.made.visited.size() == 6);
  CHECK(companies(cut, 0) == Companies{3} && companies(cut, 1) == Companies{3});
  CHECK((companies(cut, 2) == Companies{2, 1}));     // slots 512 … 767: two of them go on together
  CHECK((companies(cut, 3) == Companies{1, 1, 1}));  // not all of it is seen
}

TEST(groups_with_nothing_in_common_are_done_as_a_whole) {
  std::vector<Segment> segments{{0, 0, 900, 0, 0}, {0, 1000, 900, 0, 0}};
  const Cut cut(segments, {{0, 1, 899, 0, 1, 899}, {1, 1, 899, 1, 1, 899}});
  CHECK(cut.made.visits.empty() && cut.made.whole.size() == 4);
}

TEST(other_rotations_are_not_visited_together) {
  RopeParams rope{.dims = kDim};
  AttentionParams params;
  params.rope = &rope;
  std::vector<Segment> segments;
  std::vector<AttentionGroup> groups;
  for (const Pos rotation : {0, 5, 0}) add_session(segments, groups, 640, rotation);
  const Cut cut(segments, groups, params);
  CHECK((companies(cut, 0) == Companies{2, 1}));
}

TEST(a_window_ends_what_is_visited_together) {
  AttentionParams params;
  params.window = {WindowKind::standard, 500};  // position 899 sees from 400 on
  std::vector<Segment> segments;
  std::vector<AttentionGroup> groups;
  for (int i = 0; i < 2; ++i) add_session(segments, groups, 640);
  const Cut cut(segments, groups, params);
  CHECK(companies(cut, 0).empty() && (companies(cut, 1) == Companies{1, 1}));
  CHECK(companies(cut, 2) == Companies{2});
}

TEST(a_visit_has_no_more_queries_than_fit) {
  std::vector<Segment> segments;
  std::vector<AttentionGroup> groups;
  for (int i = 0; i < 140; ++i) add_session(segments, groups, 640);  // two queries each
  const Cut cut(segments, groups);
  CHECK((companies(cut, 0) == Companies{128, 12}));
}

namespace {

// A prompt of `rows` tokens behind 3,000 and sessions of one token behind 1,000 each, none shared.
Cut prompt_beside(std::uint32_t rows, std::uint32_t sessions, std::uint32_t threads) {
  std::vector<Segment> segments{{0, 0, 3000 + rows, 0, 0}};
  std::vector<AttentionGroup> groups{{0, rows, 3000, 0, 1, 3000}};
  for (std::uint32_t i = 0; i < sessions; ++i) {
    segments.push_back({0, 4096 + i * 1024, 1001, 0, 0});
    groups.push_back({rows + i, 1, 1000, 1 + i, 1, 1000});
  }
  return {std::move(segments), std::move(groups), {}, threads};
}

}  // namespace

TEST(a_block_with_too_little_beside_it_is_cut_by_partitions) {
  const Cut one = prompt_beside(100, 2, 1);
  CHECK(one.made.whole.size() == 6 && one.made.visits.empty());  // two KV heads each

  const Cut two = prompt_beside(100, 2, 2);
  CHECK(two.made.whole.size() == 5 && two.made.visited.size() == 1);
  const QueryBlock& cut = *two.made.visited.front();
  CHECK(cut.count == 200 && two.made.visits.size() == cut.partitions);
  for (std::uint32_t i = 0; i < cut.partitions; ++i) {
    CHECK(two.made.visits[i].partition == cut.first_partition + i && two.made.visits[i].queries == 200);
    CHECK(two.made.places[cut.first_place + i].visit == i);
  }

  // Each of eight threads has little beside a block of the prompt.
  CHECK(prompt_beside(100, 2, 8).made.visited.size() >= 2);
}

TEST(a_block_with_enough_beside_it_is_done_as_a_whole_and_first) {
  const Cut cut = prompt_beside(4, 16, 2);
  CHECK(cut.made.whole.size() == 34 && cut.made.visits.empty());
  CHECK(cut.made.whole[0]->count == 8 && cut.made.whole[1]->count == 8 && cut.made.whole[2]->count == 2);
}

TEST(without_room_for_partial_results_all_are_whole_the_largest_first) {
  constexpr std::uint32_t kLong = 1000000;  // 256 queries times 3,907 partitions
  const Cut cut({{0, 0, 1001, 0, 0}, {0, 4096, kLong + 128, 0, 0}},
                {{0, 1, 1000, 0, 1, 1000}, {1, 128, kLong, 1, 1, kLong}}, {}, 2);
  CHECK(cut.made.whole.size() == 4 && cut.made.visits.empty() && cut.made.visited.empty());
  CHECK(cut.made.whole[0]->count == 256 && cut.made.whole[1]->count == 256);
  CHECK(cut.made.whole[2]->count == 2 && cut.made.whole[3]->count == 2);
}
