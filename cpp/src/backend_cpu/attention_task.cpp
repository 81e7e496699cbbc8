#include "backend_cpu/attention_task.h"

#include <algorithm>

namespace pykv::cpu {
namespace {

using kernels::kQueryBlock;

std::span<const Segment> segments_of(const Attention& a, const AttentionGroup& group) {
  return std::span(a.batch->segments).subspan(group.first_segment, group.segments);
}

// Appends the partitions in which the group has tokens.
void add_partitions(const AttentionBatch& batch, const AttentionGroup& group, std::vector<Partition>& to) {
  const std::size_t before = to.size();
  for (std::uint32_t i = group.first_segment; i < group.first_segment + group.segments; ++i) {
    const Segment& segment = batch.segments[i];
    const std::uint32_t last = (segment.slot + segment.length - 1) / kPartition;
    for (std::uint32_t number = segment.slot / kPartition; number <= last; ++number)
      if (to.size() == before || to.back().number != number) to.push_back({number, i});
  }
}

QueryBlock make_block(const Attention& a, std::span<const Partition> partitions, std::uint32_t offset,
                      QueryBlock block) {
  const AttentionGroup& group = *block.group;
  const std::uint32_t first_row = a.row_in_group(block, 0);
  const std::uint32_t last_row = a.row_in_group(block, block.count - 1);
  const std::uint32_t lowest = first_slot_seen(a, group, first_row) / kPartition;
  const std::uint32_t highest = (group.first_slot + last_row) / kPartition;
  const auto begin = std::partition_point(partitions.begin(), partitions.end(),
                                          [&](const Partition& p) { return p.number < lowest; });
  const auto end =
      std::partition_point(begin, partitions.end(), [&](const Partition& p) { return p.number <= highest; });
  block.first_partition = offset + static_cast<std::uint32_t>(begin - partitions.begin());
  block.partitions = static_cast<std::uint32_t>(end - begin);
  return block;
}

// Slot relative to the partition, within [0, 256].
std::uint32_t inside(std::uint32_t slot, std::uint32_t begin) {
  return slot <= begin ? 0 : std::min(slot - begin, kPartition);
}

// Narrows what the queries see to what pieces cover.
void narrow(std::span<const kernels::KvPiece> pieces, std::uint32_t count, std::uint32_t* begins,
            std::uint32_t* ends) {
  std::size_t next = 0;  // first piece that ends behind begins[i]
  std::size_t past = 0;  // pieces that begin before ends[i]
  for (std::uint32_t i = 0; i < count; ++i) {
    while (next < pieces.size() && pieces[next].first + pieces[next].length <= begins[i]) ++next;
    while (past < pieces.size() && pieces[past].first < ends[i]) ++past;
    if (next < pieces.size()) begins[i] = std::max(begins[i], pieces[next].first);
    ends[i] = past == 0 ? 0 : std::min(ends[i], pieces[past - 1].first + pieces[past - 1].length);
    ends[i] = std::max(begins[i], ends[i]);
  }
}

// Cells of slots [begin, end) of a partition, cut where blocks of cells end.
void find_pieces(const Attention& a, const QueryBlock& block, const Partition& partition, std::uint32_t begin,
                 std::uint32_t end, AttentionWorker& worker, kernels::PartitionTask& task) {
  const std::uint32_t base = partition.number * kPartition;
  const auto& segments = a.batch->segments;
  const std::uint32_t last = block.group->first_segment + block.group->segments;
  std::size_t count = 0;
  std::uint32_t panel = 0;
  for (std::uint32_t i = partition.segment; i < last && segments[i].slot < end; ++i) {
    const Segment& segment = segments[i];
    const std::uint32_t to = std::min(end, segment.slot + segment.length);
    const std::uint32_t rotation = a.rotations->index(segment.rotation);
    for (std::uint32_t slot = std::max(begin, segment.slot); slot < to;) {
      const CellIndex cell = segment.cell + (slot - segment.slot);
      const std::uint32_t length = std::min(kBlockCells - cell % kBlockCells, to - slot);
      const std::byte* const bytes = a.pool->block(cell / kBlockCells);
      const std::uint32_t first = slot - base;
      if (count != 0 && worker.pieces[count - 1].first + worker.pieces[count - 1].length != first)
        task.gaps = true;
      if (task.slopes != nullptr)
        for (std::uint32_t j = 0; j < length; ++j)
          worker.key_positions[first + j] = segment.first + static_cast<Pos>(slot - segment.slot + j);
      worker.rotations[count] = rotation;
      const std::uint32_t inside = cell % kBlockCells;
      worker.pieces[count++] = {bytes + a.place->k_tile(block.kv_head),
                                bytes + a.place->v_tile(block.kv_head),
                                inside,
                                length,
                                first,
                                panel};
      panel += (inside + length - 1) / kernels::kPanelWidth - inside / kernels::kPanelWidth + 1;
      slot += length;
    }
  }
  task.pieces = {worker.pieces, count};
}

}  // namespace

void AttentionCut::clear() {
  partitions.clear();
  blocks.clear();
  whole.clear();
  visited.clear();
  visits.clear();
  visitors.clear();
  places.clear();
  sights.clear();
}

void AttentionCut::begin_visits() {
  if (left.size() < visited.size()) left = std::vector<std::atomic<std::uint32_t>>(visited.size());
  for (const QueryBlock* block : visited) left[block->number].store(block->partitions);
}

void cut_blocks(const Attention& a) {
  for (const AttentionGroup& group : a.batch->groups) {
    const auto offset = static_cast<std::uint32_t>(a.cut->partitions.size());
    add_partitions(*a.batch, group, a.cut->partitions);
    const auto partitions = std::span<const Partition>(a.cut->partitions).subspan(offset);
    const std::uint32_t queries = group.rows * a.share;
    for (std::uint32_t head = 0; head < a.place->kv_heads; ++head)
      for (std::uint32_t first = 0; first < queries; first += kQueryBlock) {
        const std::uint32_t count = std::min(kQueryBlock, queries - first);
        a.cut->blocks.push_back(make_block(a, partitions, offset, {&group, head, first, count, 0, 0, 0, 0}));
      }
  }
}

// Positions never descend, so that everything behind the first one up to the query is seen too.
std::uint32_t first_slot_seen(const Attention& a, const AttentionGroup& group, std::uint32_t row) {
  if (a.params->window.kind == WindowKind::none) return 0;
  const Pos lowest = first_visible(group.first_position + static_cast<Pos>(row), a.params->window);
  const auto segments = segments_of(a, group);
  const auto segment = std::partition_point(segments.begin(), segments.end(), [&](const Segment& s) {
    return s.first + static_cast<Pos>(s.length) <= lowest;
  });
  return segment->slot + static_cast<std::uint32_t>(std::max(lowest - segment->first, 0));
}

void begin_blocks(const Attention& a, std::span<const QueryBlock* const> blocks, AttentionWorker& worker) {
  worker.count = 0;
  for (const QueryBlock* block : blocks) worker.count += block->count;
  worker.queries.begin_block(worker.count);
  std::uint32_t at = 0;
  for (const QueryBlock* block : blocks) {
    const AttentionGroup& group = *block->group;
    for (std::uint32_t i = 0; i < block->count; ++i, ++at) {
      const std::uint32_t row = a.row_in_group(*block, i);
      const std::uint32_t head = a.head(*block, i);
      const float* const plain = a.q.row(group.first_row + row) + std::size_t{head} * a.place->k.dim;
      const std::size_t which = std::size_t{group.first_row + row} * a.params->heads + head;
      worker.queries.set(at, plain, a.prepared == nullptr ? plain : a.prepared + which * a.prepared_stride);
      const bool same_row = i != 0 && row == a.row_in_group(*block, i - 1);
      worker.positions[at] = group.first_position + static_cast<Pos>(row);
      worker.own_slots[at] = group.first_slot + row;
      worker.first_slots[at] = same_row ? worker.first_slots[at - 1] : first_slot_seen(a, group, row);
      if (!a.params->alibi_slopes.empty()) worker.slopes[at] = a.params->alibi_slopes[head];
    }
  }
}

kernels::PartitionTask partition_task(const Attention& a, const QueryBlock& block, std::uint32_t index,
                                      AttentionWorker& worker) {
  const Partition& partition = a.cut->partitions[index];
  const std::uint32_t base = partition.number * kPartition;
  for (std::uint32_t i = 0; i < worker.count; ++i) {
    worker.begins[i] = inside(worker.first_slots[i], base);
    worker.ends[i] = inside(worker.own_slots[i] + 1, base);
  }
  kernels::PartitionTask task;
  task.k = a.place->k;
  task.v = a.place->v;
  task.v_view_of_k = a.place->v_view_of_k;
  task.count = worker.count;
  task.begins = worker.begins;
  task.ends = worker.ends;
  task.ahead = {worker.ahead, worker.ahead_count};
  task.scale = a.params->scale;
  task.softcap = a.params->softcap;
  if (!a.params->alibi_slopes.empty()) {
    task.slopes = worker.slopes;
    task.query_positions = worker.positions;
    task.key_positions = worker.key_positions;
  }
  find_pieces(a, block, partition, base + worker.begins[0], base + worker.ends[worker.count - 1], worker,
              task);
  narrow(task.pieces, worker.count, worker.begins, worker.ends);
  return task;
}

void look_ahead(const Attention& a, const QueryBlock& block, std::uint32_t index, AttentionWorker& worker) {
  const Partition& partition = a.cut->partitions[index];
  const std::uint32_t begin = partition.number * kPartition;
  const std::uint32_t end = begin + kPartition;
  const std::uint32_t last = block.group->first_segment + block.group->segments;
  std::size_t& count = worker.ahead_count;
  for (std::uint32_t i = partition.segment; i < last && a.batch->segments[i].slot < end; ++i) {
    const Segment& segment = a.batch->segments[i];
    CellIndex cell = segment.cell + (std::max(begin, segment.slot) - segment.slot);
    const CellIndex past = segment.cell + (std::min(end, segment.slot + segment.length) - segment.slot);
    for (; cell < past && count < AttentionWorker::kTilesAhead; cell = (cell / kBlockCells + 1) * kBlockCells)
      if (std::min(kBlockCells - cell % kBlockCells, past - cell) >= kBlockCells / 2)
        worker.ahead[count++] = a.pool->block(cell / kBlockCells) + a.place->k_tile(block.kv_head);
  }
}

}  // namespace pykv::cpu
