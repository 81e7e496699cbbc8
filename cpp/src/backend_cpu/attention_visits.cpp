// Which blocks of queries are cut by partitions, and which of them read one together.
#include <algorithm>
#include <tuple>

#include "backend_cpu/attention_task.h"

namespace pykv::cpu {
namespace {

using kernels::kQueryBlock;

constexpr std::size_t kMaxPartialFloats = std::size_t{1} << 24;  // 64 MiB

constexpr Place kNowhere{0xffffffff, 0};
constexpr std::uint32_t kWhole = 0xffffffff;  // number of blocks that are not visited

// The part of a segment inside a partition.
Segment clipped(const Segment& segment, std::uint32_t number) {
  const std::uint32_t begin = std::max(segment.slot, number * kPartition);
  const std::uint32_t end = std::min(segment.slot + segment.length, (number + 1) * kPartition);
  const std::uint32_t skip = begin - segment.slot;
  return {segment.first + static_cast<Pos>(skip), segment.cell + skip, end - begin, segment.rotation, begin};
}

auto key(const Segment& s) { return std::tie(s.cell, s.rotation, s.length, s.slot, s.first); }

// The segments of a group in a partition.
std::span<const Segment> inside(const Attention& a, const AttentionGroup& group, const Partition& partition) {
  const std::uint32_t end = (partition.number + 1) * kPartition;
  std::uint32_t last = partition.segment + 1;
  while (last < group.first_segment + group.segments && a.batch->segments[last].slot < end) ++last;
  return std::span(a.batch->segments).subspan(partition.segment, last - partition.segment);
}

// By partition, then by its tokens: those who have the same ones stand together.
struct ByTokens {
  const Attention& a;

  bool operator()(const Sight& x, const Sight& y) const {
    if (x.number != y.number) return x.number < y.number;
    const auto left = inside(a, *x.block->group, a.cut->partitions[x.partition]);
    const auto right = inside(a, *y.block->group, a.cut->partitions[y.partition]);
    return std::lexicographical_compare(
        left.begin(), left.end(), right.begin(), right.end(), [&](const Segment& l, const Segment& r) {
          const Segment in_left = clipped(l, x.number), in_right = clipped(r, x.number);
          return key(in_left) < key(in_right);
        });
  }
};

// Groups of few queries, of which several fit into a block.
bool is_small(const Attention& a, const AttentionGroup& group) {
  return group.rows * a.share <= kQueryBlock / 2;
}

void add_sights(const Attention& a, const QueryBlock& block, std::vector<Sight>& sights) {
  const AttentionGroup& group = *block.group;
  const std::uint32_t from = first_slot_seen(a, group, group.rows - 1);
  for (std::uint32_t i = block.first_partition; i < block.first_partition + block.partitions; ++i) {
    const Partition& partition = a.cut->partitions[i];
    const std::uint32_t begin = partition.number * kPartition;
    if (begin + kPartition > group.first_slot + 1) break;
    if (begin < from) continue;
    sights.push_back({partition.number, i, &block});
  }
}

void find_sights(const Attention& a, std::vector<Sight>& sights) {
  for (const QueryBlock& block : a.cut->blocks)
    if (block.kv_head == 0 && is_small(a, *block.group)) add_sights(a, block, sights);
  std::sort(sights.begin(), sights.end(), ByTokens{a});
}

// Of sights in order.
bool together(const Attention& a, const Sight& x, const Sight& y) { return !ByTokens{a}(x, y); }

bool any_together(const Attention& a, std::span<const Sight> sights) {
  return std::adjacent_find(sights.begin(), sights.end(), [&](const Sight& x, const Sight& y) {
           return together(a, x, y);
         }) != sights.end();
}

void begin_visit(AttentionCut& cut, std::uint32_t partition) {
  const std::size_t queries = cut.visiting_queries();
  cut.visits.push_back({partition, static_cast<std::uint32_t>(cut.visitors.size()), 0, 0, queries});
}

void join_visit(AttentionCut& cut, const QueryBlock& block, std::uint32_t partition) {
  Visit& visit = cut.visits.back();
  cut.places[block.first_place + (partition - block.first_partition)] = {
      static_cast<std::uint32_t>(cut.visits.size() - 1), visit.queries};
  cut.visitors.push_back(&block);
  ++visit.blocks;
  visit.queries += block.count;
}

// Blocks that see the same tokens, for each KV head, in as few visits as hold them.
void visit_together(const Attention& a, std::span<const Sight> sights) {
  for (std::uint32_t head = 0; head < a.place->kv_heads; ++head) {
    begin_visit(*a.cut, sights.front().partition);
    for (const Sight& sight : sights) {
      const QueryBlock& block = sight.block[head];
      if (a.cut->visits.back().queries + block.count > kQueryBlock) begin_visit(*a.cut, sight.partition);
      join_visit(*a.cut, block, sight.partition);
    }
  }
}

void visit_shared(const Attention& a, std::span<const Sight> sights) {
  for (std::size_t first = 0, last = 0; first < sights.size(); first = last) {
    for (last = first + 1; last < sights.size() && together(a, sights[first], sights[last]);) ++last;
    if (last - first > 1) visit_together(a, sights.subspan(first, last - first));
  }
}

void visit_alone(AttentionCut& cut, const QueryBlock& block) {
  for (std::uint32_t i = 0; i < block.partitions; ++i) {
    if (cut.places[block.first_place + i].visit != kNowhere.visit) continue;
    begin_visit(cut, block.first_partition + i);
    join_visit(cut, block, block.first_partition + i);
  }
}

// What a block takes, in queries against a partition; to read one takes as long as some queries.
std::uint64_t work(const QueryBlock& block) {
  constexpr std::uint64_t kReading = 8;
  return (block.count + kReading) * block.partitions;
}

// Into cut.whole, the largest first. Threads end together if each block finds enough to do beside it:
// larger ones that do not are visited, as are, where some `share`, those of small groups.
void choose_whole(const Attention& a, std::uint32_t threads, bool share) {
  constexpr std::uint64_t kWorthIt = 16;  // blocks of a thread, each of which may be what others wait for
  AttentionCut& cut = *a.cut;
  std::uint64_t all = 0;
  for (const QueryBlock& block : cut.blocks) {
    all += work(block);
    if (!share || !is_small(a, *block.group)) cut.whole.push_back(&block);
  }
  std::sort(cut.whole.begin(), cut.whole.end(), [](const QueryBlock* x, const QueryBlock* y) {
    return work(*x) != work(*y) ? work(*x) > work(*y) : x > y;
  });
  std::uint64_t beside = all;  // a block: what is done later, visits last
  std::size_t kept = 0;
  for (const QueryBlock* block : cut.whole) {
    const std::uint64_t own = work(*block);
    const bool enough = own * (threads - 1) <= beside - own;
    if (!enough && own * threads * kWorthIt > all && block->partitions > 1) continue;
    beside -= own;
    cut.whole[kept++] = block;
  }
  cut.whole.resize(kept);
}

// Gives blocks that are not whole their numbers and places. Whether partial results have room.
bool take_places(const Attention& a) {
  AttentionCut& cut = *a.cut;
  std::size_t places = 0, queries = 0;
  for (const QueryBlock* block : cut.whole) cut.blocks[block - cut.blocks.data()].number = kWhole;
  for (QueryBlock& block : cut.blocks) {
    if (block.number == kWhole) continue;
    block.number = static_cast<std::uint32_t>(cut.visited.size());
    cut.visited.push_back(&block);
    block.first_place = static_cast<std::uint32_t>(places);
    places += block.partitions;
    queries += std::size_t{block.partitions} * block.count;
  }
  if (queries * (a.stride + 2) > kMaxPartialFloats) return false;
  cut.places.assign(places, kNowhere);
  return true;
}

}  // namespace

void choose_visits(const Attention& a, std::uint32_t threads) {
  AttentionCut& cut = *a.cut;
  find_sights(a, cut.sights);
  const bool share = any_together(a, cut.sights);
  choose_whole(a, threads, share);
  if (!take_places(a)) {
    cut.visited.clear();
    cut.whole.clear();
    return choose_whole(a, 1, false);  // all of them, as for one thread
  }
  if (share) visit_shared(a, cut.sights);
  for (const QueryBlock* block : cut.visited) visit_alone(cut, *block);
}

}  // namespace pykv::cpu
