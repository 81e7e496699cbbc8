// Both products of attention on 16-bit integers (int16.inl.h says how): the scores.

// Where what is not integers stands in a prepared query, behind at most half of its floats.
constexpr std::uint32_t scales_of_query(std::uint32_t dim) { return prepared_floats(dim) / 2; }

// A query of `dim` elements as pairs, then what an integer stands for.
void quantize_query(const float* query, std::uint32_t dim, float* pairs) {
  vf squares{};
  for (std::uint32_t d = 0; d < dim; d += kLanes) {
    const vf x = load_some(query + d, dim - d);
    squares = multiply_add(x, x, squares);
  }
  const vf length = square_root(splat(sum_lanes(squares)));
  const vf factor = factor_for(kNorm, length);
  for (std::uint32_t d = 0; d < dim; d += kLanes)
    store_halves(pairs + d / 2, load_some(query + d, dim - d), factor);
  pairs[scales_of_query(dim)] = length[0] / kNorm;
}

// The lengths of cells of K; value(d) has element d of each.
template <class Value>
PYKV_INLINE vf cell_lengths(std::uint32_t dim, Value value) {
  vf squares[4] = {};
  for (std::uint32_t d = 0; d < dim; d += 4) PYKV_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) {
    const vf x = value(d + i);
    squares[i] = multiply_add(x, x, squares[i]);
  }
  return square_root((squares[0] + squares[1]) + (squares[2] + squares[3]));
}

// A group of 16 cells of K as a panel; value(d, v) has element d of those of vector v, which
// become integers of length kNorm; and what integers stand for.
template <class Value>
PYKV_INLINE void quantize_cells(std::uint32_t dim, const vf (&lengths)[kVecs], Value value, float* panel,
                                float* scales) {
  vf factors[kVecs];
  PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) factors[v] = factor_for(kNorm, lengths[v]);
  for (Index d = 0; d < dim; d += 2) PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v)
    store(panel + d / 2 * kPanelWidth + v * kLanes,
          as_float(pair_words(low_half(value(d, v), factors[v]), low_half(value(d + 1, v), factors[v]))));
  PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) store(scales + v * kLanes, lengths[v] * (1.0F / kNorm));
}

PYKV_INLINE void quantize_group(const PartitionTask& task, const std::byte* group, float* panel,
                                float* scales, AttentionScratch& scratch) {
  const std::uint32_t dim = task.k.dim;
  vf lengths[kVecs];
  if (task.k.type == DType::f16) {
    const std::byte* const values = group + task.k.values_offset;
    const auto value = [&](Index d, int v) { return load_f16(values + (d * kPanelWidth + v * kLanes) * 2); };
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) lengths[v] = cell_lengths(dim, [&](Index d) { return value(d, v); });
    return quantize_cells(dim, lengths, value, panel, scales);
  }
  decode_panel(k_panel(task.k, group), 0, dim, scratch.floats);
  PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v)
    lengths[v] = cell_lengths(
        dim, [&](std::uint32_t d) { return load(scratch.floats + d * kPanelWidth + v * kLanes); });
  quantize_cells(
      dim, lengths, [&](Index d, int v) { return load(scratch.floats + d * kPanelWidth + v * kLanes); },
      panel, scales);
}

// Part `part` of `parts` of what is read soon: too much at a time holds up what is read now.
PYKV_INLINE void ask(std::span<const std::byte> soon, std::uint32_t part, std::uint32_t parts) {
  const std::size_t lines = soon.size() / 64;
  for (std::size_t line = lines * part / parts; line < lines * (part + 1) / parts; ++line)
    __builtin_prefetch(soon.data() + line * 64, 0, 2);
}

// What is read after a piece, where that is long enough to need asking: its V, and K of the next one.
struct Ahead {
  std::span<const std::byte> k, v;

  PYKV_INLINE Ahead(const PartitionTask& task, std::size_t piece) {
    constexpr std::uint32_t kLong = kBlockCells / 2;
    if (task.converted || task.count == kQueryTile) return;  // others have read it just before
    if (task.pieces[piece].length >= kLong) v = {task.pieces[piece].v_tile, task.v.bytes};
    if (piece + 1 < task.pieces.size() && task.pieces[piece + 1].length >= kLong)
      k = {task.pieces[piece + 1].k_tile, task.k.bytes};
  }

  PYKV_INLINE void ask_for(std::uint32_t part, std::uint32_t parts) const {
    ask(k, part, parts);
    ask(v, part, parts);
  }
};

// Scores of queries [begin, end) with panels of K, to out[query * stride + lane].
struct ScorePanels {
  const float* tile = nullptr;
  std::size_t stride = 0;  // from panel to panel
  std::uint32_t panels = 0;
  std::uint32_t pairs = 0;              // words of a cell
  const float* cell_scales = nullptr;   // of lanes
  const float* const* x = nullptr;      // of queries
  const float* query_scales = nullptr;  // times the softmax's
  float* out = nullptr;
  std::size_t out_stride = 0;
};

template <int kRows, int kPanels>
void score_block(const ScorePanels& s, std::uint32_t row, std::uint32_t panel) {
  const float* const scales = s.cell_scales + panel * kPanelWidth;
  float* const out = s.out + row * s.out_stride + panel * kPanelWidth;
  multiply_pairs<kRows, kPanels>(
      s.x + row, s.tile + panel * s.stride, s.stride, 0, s.pairs, [&](int r, int c, vi sums) {
        const vf scale = load(scales + c * kLanes) * s.query_scales[row + static_cast<std::uint32_t>(r)];
        store(out + static_cast<std::size_t>(r) * s.out_stride + c * kLanes, to_float(sums) * scale);
      });
}

void score_panels(const ScorePanels& s, std::uint32_t count, const Ahead& ahead) {
  const std::uint32_t parts = (count + kMaxRows - 1) / kMaxRows * s.panels;
  std::uint32_t part = 0;
  for (std::uint32_t row = 0; row < count; row += kMaxRows)
    for_some_rows(count - row, [&](auto rows) {
      std::uint32_t panel = 0;
      const auto take = [&](auto panels) {
        for (; panel + panels.value <= s.panels; panel += panels.value) {
          for (int i = 0; i < panels.value; ++i) ahead.ask_for(part++, parts);
          score_block<rows.value, panels.value>(s, row, panel);
        }
      };
      constexpr int kMost = pair_panels_at_once(rows.value);
      if constexpr (kMost >= 4) take(std::integral_constant<int, 4>{});
      if constexpr (kMost >= 2) take(std::integral_constant<int, 2>{});
      take(std::integral_constant<int, 1>{});
    });
}

std::uint32_t panels_of(const Groups& groups) {
  return (groups.skip + groups.length + kPanelWidth - 1) / kPanelWidth;
}

// K of all pieces.
void convert_k(const PartitionTask& task, AttentionScratch& scratch) {
  const std::size_t stride = std::size_t{task.k.dim} / 2 * kPanelWidth;
  for_groups(task, [&](const Groups& groups) {
    for (std::uint32_t p = 0; p < panels_of(groups); ++p)
      quantize_group(task, groups.bytes + p * task.k.group_bytes,
                     scratch.k_pairs + (groups.panel + p) * stride,
                     scratch.k_scales + (groups.panel + p) * kPanelWidth, scratch);
  });
}

// As score_groups() has it.
void score_groups_int16(const PartitionTask& task, ScorePanels s, const Groups& groups,
                        AttentionScratch& scratch) {
  const auto [piece, bytes, skip, length, first, panel] = groups;
  const auto [begin, end] = queries_seeing(task, first, length);
  if (begin == end) return;
  alignas(64) float scales[kGroupsAtOnce * kPanelWidth];
  const Ahead ahead(task, piece);
  s.panels = panels_of(groups);
  if (task.converted) {
    s.tile = scratch.k_pairs + panel * s.stride;
    s.cell_scales = scratch.k_scales + panel * kPanelWidth;
  } else {
    s.tile = scratch.tile;
    s.cell_scales = scales;
    for (std::uint32_t p = 0; p < s.panels; ++p)
      quantize_group(task, bytes + p * task.k.group_bytes, scratch.tile + p * s.stride,
                     scales + p * kPanelWidth, scratch);
  }
  s.x += begin;
  s.query_scales += begin;
  float* const scores = scratch.scores + begin * kPartitionPositions + first;
  if (skip == 0 && length % kPanelWidth == 0) {
    s.out = scores;
    s.out_stride = kPartitionPositions;
    return score_panels(s, end - begin, ahead);
  }
  s.out = scratch.edge;
  s.out_stride = std::size_t{kGroupsAtOnce} * kPanelWidth;
  score_panels(s, end - begin, ahead);
  for (std::uint32_t i = 0; i < end - begin; ++i)
    std::memcpy(scores + i * kPartitionPositions, scratch.edge + i * s.out_stride + skip,
                length * sizeof(float));
}

// clang-format off
#include "kernels/lines_ahead.inl.h"
#include "kernels/attention_bytes.inl.h"
#include "kernels/attention_few.inl.h"
// clang-format on

// Whether scores are turned into something else before they are weights.
bool shaped(const PartitionTask& task) { return task.softcap != 0 || task.slopes != nullptr; }

void prepare_int16(const QueryTask& task) {
  if (!int16_pays(task)) return prepare(task);
  if (scored_as_bytes(task.k.type)) return quantize_query_bytes(task);
  quantize_query(task.query, task.k.dim, task.prepared);
}

// Scores, times the softmax's scale, and log2 e unless they are shaped.
void score_int16(const PartitionTask& task, AttentionScratch& scratch) {
  if (!int16_pays(task)) return score(task, scratch);
  const float scale = shaped(task) ? task.scale : task.scale * kLog2E;
  if (task.k.type == DType::q8_0) return score_bytes<DType::q8_0>(task, scale, scratch);
  if constexpr (scored_as_bytes(DType::q4_0))
    if (task.k.type == DType::q4_0) return score_bytes<DType::q4_0>(task, scale, scratch);
  float scales[kQueryTile];
  for (std::uint32_t i = 0; i < task.count; ++i)
    scales[i] = task.queries[i][scales_of_query(task.k.dim)] * scale;
  if (few_scores(task))
    return for_some_rows(task.count, [&](auto rows) {
      if constexpr (rows.value <= kFewRows) score_few<rows.value>(task, {task.queries, scales}, scratch);
    });
  const std::uint32_t pairs = task.k.dim / 2;
  ScorePanels s;
  s.stride = std::size_t{pairs} * kPanelWidth;
  s.pairs = pairs;
  s.x = task.queries;
  s.query_scales = scales;
  for_groups(task, [&](const Groups& groups) { score_groups_int16(task, s, groups, scratch); });
}
