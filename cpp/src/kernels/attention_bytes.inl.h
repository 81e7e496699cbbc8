// Scores with K stored as q8_0 or, on some tiers, q4_0: the stored codes are one operand of the
// dot-product instructions as they are (block_layout.h). A query becomes blocks of q8_0 with scales of
// float32, which each tier keeps as its instructions take them. A block of 32 elements is exact,
//   Σ u·q - bias * Σ q,  u = stored + bias,
// and one step of the float32 chain over blocks.

constexpr std::uint32_t code_bias(DType type) { return type == DType::q8_0 ? kByteBias : 8; }

constexpr float kMostByte = 127.0F;
constexpr std::uint32_t kMaxBlocks = kMaxHeadDim / kBlock;

// The largest magnitude, NaN if one is.
float largest_of(const float* x, std::uint32_t n) {
  vi most{};
  for (std::uint32_t i = 0; i < n; i += kLanes) {
    const vi magnitude = load_words(x + i) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  const std::int32_t bits = largest_lane(most);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A query's bytes, then of each block what an integer stands for, then what the bias of u adds.
void quantize_query_bytes(const QueryTask& task) {
  const std::uint32_t blocks = task.k.dim / kBlock;
  float* const scales = task.prepared + scales_of_query(task.k.dim);
  for (std::uint32_t block = 0; block < blocks; ++block) {
    const float largest = largest_of(task.query + block * kBlock, kBlock);
    const vf factor = factor_for(kMostByte, splat(largest));
    vi sum{};
    for (std::uint32_t d = block * kBlock; d < (block + 1) * kBlock; d += kLanes) {
      const vi q = rounded(load(task.query + d) * factor);
      put_query_bytes(task.prepared, d, q);
      sum = Sum::apply(sum, q);
    }
    scales[block] = largest / kMostByte;
    const auto all = static_cast<std::uint32_t>(sum_of_lanes(negated(sum)));
    const std::uint32_t bias = all * code_bias(task.k.type);
    std::memcpy(scales + blocks + block, &bias, sizeof bias);
  }
}

// Queries against groups of 16 cells of K.
struct ByteScores {
  const float* const* queries = nullptr;  // prepared
  const float* scales = nullptr;          // [query][block], times the softmax's
  const TileLayout* k = nullptr;
  float* out = nullptr;  // out[query * out_stride + 16 * group + lane]
  std::size_t out_stride = 0;

  PYKV_INLINE std::int32_t bias(std::uint32_t query, std::uint32_t block) const {
    std::int32_t bias;
    std::memcpy(&bias, queries[query] + scales_of_query(k->dim) + k->dim / kBlock + block, sizeof bias);
    return bias;
  }
};

template <DType type, int kRows, int kGroups>
PYKV_INLINE void score_byte_groups(const ByteScores& s, const std::byte* groups, std::uint32_t row) {
  vf totals[kRows][kGroups * kVecs] = {};
  const std::uint32_t blocks = s.k->dim / kBlock;
  for (std::uint32_t b = 0; b < blocks; ++b) {
    vi sums[kRows][kGroups * kVecs];
    PYKV_UNROLL
    for (int i = 0; i < kRows; ++i) PYKV_UNROLL
    for (int v = 0; v < kGroups * kVecs; ++v)
      sums[i][v] = vi{} + s.bias(row + static_cast<std::uint32_t>(i), b);
    add_byte_block<type, kRows, kGroups>(s.queries + row, groups + s.k->values_offset, s.k->group_bytes, b,
                                         sums);
    const float* const scales = s.scales + row * blocks + b;
    PYKV_UNROLL
    for (int v = 0; v < kGroups * kVecs; ++v) {
      const vf d = load_scales(groups + static_cast<std::size_t>(v / kVecs) * s.k->group_bytes, b, v % kVecs);
      PYKV_UNROLL
      for (int i = 0; i < kRows; ++i)
        totals[i][v] = multiply_add(to_float(sums[i][v]), d * scales[static_cast<std::uint32_t>(i) * blocks],
                                    totals[i][v]);
    }
  }
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) PYKV_UNROLL
  for (int v = 0; v < kGroups * kVecs; ++v)
    store(s.out + (row + static_cast<std::uint32_t>(i)) * s.out_stride + v * kLanes, totals[i][v]);
}

// All queries, `count` of them, against `kGroups` groups.
template <DType type, int kGroups>
PYKV_INLINE void score_byte_rows(const ByteScores& s, const std::byte* groups, std::uint32_t count) {
  constexpr std::uint32_t kMost = 6;  // their sums and totals stay in registers
  std::uint32_t row = 0;
  for (; row + kMost <= count; row += kMost) score_byte_groups<type, kMost, kGroups>(s, groups, row);
  if (row == count) return;
  for_some_rows(count - row, [&](auto rows) {
    if constexpr (rows.value < kMost) score_byte_groups<type, rows.value, kGroups>(s, groups, row);
  });
}

template <DType type>
void score_bytes(const PartitionTask& task, float softmax_scale, AttentionScratch& scratch) {
  const std::uint32_t blocks = task.k.dim / kBlock;
  float scales[kQueryTile * kMaxBlocks];
  for (std::uint32_t i = 0; i < task.count; ++i)
    for (std::uint32_t b = 0; b < blocks; ++b)
      scales[i * blocks + b] = task.queries[i][scales_of_query(task.k.dim) + b] * softmax_scale;
  const bool few = task.count <= kFewRows && !task.converted;
  const VTiles tiles(task);
  LinesAhead v_lines(tiles.all(), few ? task.v.bytes : 0);
  const std::size_t lines = (task.v.bytes / 64 + kGroupsAtOnce - 1) / kGroupsAtOnce;
  for_groups(task, [&](const Groups& groups) {
    const auto [piece, bytes, skip, length, first, panel] = groups;
    static_cast<void>(panel);
    const auto [begin, end] = queries_seeing(task, first, length);
    constexpr std::size_t kEdgeStride = std::size_t{kGroupsAtOnce} * kPanelWidth;
    const Ahead ahead(task, piece);
    const bool whole = skip == 0 && length % kPanelWidth == 0;
    float* const scores = scratch.scores + begin * kPartitionPositions + first;
    ByteScores s{task.queries + begin, scales + begin * blocks, &task.k, whole ? scores : scratch.edge,
                 whole ? std::size_t{kPartitionPositions} : kEdgeStride};
    const auto ask = [&](std::uint32_t at, std::uint32_t groups_asked) {
      if (few) return v_lines.ask(lines * groups_asked);
      for (std::uint32_t g = 0; g < groups_asked; ++g) ahead.ask_for(at / kPanelWidth + g, kGroupsAtOnce);
    };
    std::uint32_t at = 0;
    if constexpr (kByteGroups > 1)
      for (; at + kByteGroups * kPanelWidth <= skip + length; at += kByteGroups * kPanelWidth) {
        ask(at, kByteGroups);
        score_byte_rows<type, kByteGroups>(s, bytes + at / kPanelWidth * task.k.group_bytes, end - begin);
        s.out += kByteGroups * kPanelWidth;
      }
    for (; at < skip + length; at += kPanelWidth) {
      ask(at, 1);
      score_byte_rows<type, 1>(s, bytes + at / kPanelWidth * task.k.group_bytes, end - begin);
      s.out += kPanelWidth;
    }
    if (!whole)
      for (std::uint32_t i = 0; i < end - begin; ++i)
        std::memcpy(scores + i * kPartitionPositions, scratch.edge + i * kEdgeStride + skip,
                    length * sizeof(float));
  });
}
