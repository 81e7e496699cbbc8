// What attend() refuses before anything is read.
#include <algorithm>
#include <cmath>

#include "backend_cpu/attention_task.h"

namespace pykv::cpu {
namespace {

void check_per_head(const char* name, std::span<const float> values, std::uint32_t heads) {
  if (!values.empty() && values.size() != heads)
    refuse("attend", std::to_string(values.size()) + " " + name + "; needed is one for each of " +
                         std::to_string(heads) + " heads, or none");
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      refuse("attend", std::string(name) + " of head " + std::to_string(i) + " is " +
                           std::to_string(values[i]) + "; it must be finite");
}

void check_window(const Window& window) {
  if (window.kind == WindowKind::symmetric)
    throw Unsupported("[Backend.attend] a symmetric window is not supported by this build");
  if ((window.kind == WindowKind::none) != (window.size == 0))
    refuse("attend", "window size " + std::to_string(window.size) +
                         "; it must be 0 without a window and at least 1 with one");
}

void check_cells(const Pool& pool, const Segment& segment) {
  const std::uint64_t last = std::uint64_t{segment.cell} + segment.length - 1;
  if (last >= std::uint64_t{pool.blocks} * kBlockCells)
    refuse("attend", "cell " + std::to_string(last) + "; the pool has " +
                         std::to_string(std::uint64_t{pool.blocks} * kBlockCells));
  for (std::uint64_t block = segment.cell / kBlockCells; block <= last / kBlockCells; ++block)
    check_cell("attend", pool, static_cast<CellIndex>(block * kBlockCells));
}

// Slots ascend, positions never descend.
void check_order(const Segment& segment, const Segment* before) {
  const auto which = [&] {
    return "a segment of length " + std::to_string(segment.length) + " at position " +
           std::to_string(segment.first) + ", slot " + std::to_string(segment.slot);
  };
  const auto limit = static_cast<std::uint64_t>(kMaxPos);
  if (segment.length == 0 || segment.first < 0 ||
      static_cast<std::uint64_t>(segment.first) + segment.length > limit ||
      std::uint64_t{segment.slot} + segment.length > limit)
    refuse("attend",
           which() + "; lengths are at least 1, positions and slots 0 to " + std::to_string(kMaxPos - 1));
  if (before == nullptr) return;
  if (segment.slot < before->slot + before->length ||
      segment.first < before->first + static_cast<Pos>(before->length) - 1)
    refuse("attend", which() + " comes behind slot " + std::to_string(before->slot + before->length - 1) +
                         " at position " +
                         std::to_string(before->first + static_cast<Pos>(before->length) - 1) +
                         "; slots must ascend and positions not descend");
}

// The group's own rows lie in its segments, where it says.
void check_own_slots(std::span<const Segment> segments, const AttentionGroup& group) {
  std::uint32_t next = group.first_slot;
  const std::uint32_t end = group.first_slot + group.rows;
  const auto first = std::partition_point(segments.begin(), segments.end(), [&](const Segment& s) {
    return s.slot + s.length <= group.first_slot;
  });
  for (auto segment = first; segment != segments.end() && next < end; ++segment) {
    const std::int64_t position = std::int64_t{group.first_position} + (next - group.first_slot);
    const std::int64_t found = std::int64_t{segment->first} + next - segment->slot;
    if (segment->slot > next || found != position) break;
    next = segment->slot + segment->length;
  }
  if (next < end)
    refuse("attend", "no segment has slot " + std::to_string(next) + " at position " +
                         std::to_string(std::int64_t{group.first_position} + (next - group.first_slot)) +
                         ", which is that of a query");
}

void check_group(const Pool& pool, const AttentionBatch& batch, const AttentionGroup& group,
                 const AttentionParams& params) {
  const auto limit = static_cast<std::uint64_t>(kMaxPos);
  if (group.first_position < 0 || static_cast<std::uint64_t>(group.first_position) + group.rows > limit ||
      std::uint64_t{group.first_slot} + group.rows > limit)
    refuse("attend", "positions from " + std::to_string(group.first_position) + " and slots from " +
                         std::to_string(group.first_slot) + " on for " + std::to_string(group.rows) +
                         " rows; the limit is " + std::to_string(kMaxPos));
  if (std::uint64_t{group.first_segment} + group.segments > batch.segments.size())
    refuse("attend", "segments " + std::to_string(group.first_segment) + " to " +
                         std::to_string(std::uint64_t{group.first_segment} + group.segments) + " of " +
                         std::to_string(batch.segments.size()));
  const auto segments = std::span(batch.segments).subspan(group.first_segment, group.segments);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    check_order(segments[i], i == 0 ? nullptr : &segments[i - 1]);
    check_cells(pool, segments[i]);
    if (segments[i].rotation != 0 && params.rope == nullptr)
      refuse("attend", "a segment has rotation " + std::to_string(segments[i].rotation) +
                           ", but the rope of K is not known");
  }
  check_own_slots(segments, group);
}

}  // namespace

void check_params(const AttentionParams& params, const BlockLayout::LayerPlace& place) {
  if (params.heads == 0 || params.heads % place.kv_heads != 0)
    refuse("attend", std::to_string(params.heads) + " heads; needed is a multiple of the layer's " +
                         std::to_string(place.kv_heads) + " KV heads");
  if (!std::isfinite(params.scale))
    refuse("attend", "scale " + std::to_string(params.scale) + " must be finite");
  if (!(params.softcap >= 0) || !std::isfinite(params.softcap))
    refuse("attend", "softcap " + std::to_string(params.softcap) + " must be finite and not negative");
  check_per_head("sinks", params.sinks, params.heads);
  check_per_head("alibi_slopes", params.alibi_slopes, params.heads);
  check_window(params.window);
  if (params.rope != nullptr) validate(*params.rope, place.k.dim, "[Backend.attend] ");
}

void check_batch(const Pool& pool, const AttentionBatch& batch, std::uint32_t rows,
                 const AttentionParams& params) {
  std::uint64_t next_row = 0;
  for (const AttentionGroup& group : batch.groups) {
    const std::uint64_t end = std::uint64_t{group.first_row} + group.rows;
    if (group.rows == 0 || group.first_row < next_row || end > rows)
      refuse("attend", "a group has rows " + std::to_string(group.first_row) + " to " + std::to_string(end) +
                           "; groups are not empty, ascend, do not overlap and end at " +
                           std::to_string(rows));
    next_row = end;
    check_group(pool, batch, group, params);
  }
}

}  // namespace pykv::cpu
