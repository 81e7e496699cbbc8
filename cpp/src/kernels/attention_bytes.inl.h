// Scores with K stored as q8_0: the stored bytes are one operand of the dot-product instructions
// as they are (block_layout.h). A query becomes integers of 15 bits, which each tier keeps as its
// instructions take them. A block of 32 elements is exact,
//   Σ u·q - 128 * Σ q,  u = stored + 128,
// and one step of the float32 chain over blocks.

constexpr float kMostQuery = 16255.0F;  // so that high is at most 127

static_assert(sizeof(ByteQuery) == kMaxHeadDim / 2 * sizeof(float));

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

// The bytes of a query, and of each block what the bias of u adds. Returns what an integer stands for.
float split_query(const float* query, std::uint32_t dim, ByteQuery& to, std::int32_t* bias) {
  const float largest = largest_of(query, dim);
  const vf factor = factor_for(kMostQuery, splat(largest));
  for (std::uint32_t block = 0; block < dim / kBlock; ++block) {
    vi sum{};
    for (std::uint32_t d = block * kBlock; d < (block + 1) * kBlock; d += kLanes) {
      const vi q = rounded(load(query + d) * factor);
      to.put(d, q);
      sum += q;
    }
    bias[block] = -128 * sum_of_lanes(sum);
  }
  return largest / kMostQuery;
}

// Queries against a group of 16 cells of K.
struct ByteScores {
  const ByteQuery* queries = nullptr;
  const std::int32_t* bias = nullptr;   // of each query kMaxBlocks
  const float* query_scales = nullptr;  // times the softmax's
  std::uint32_t blocks = 0;             // of a cell
  float* out = nullptr;                 // out[query * out_stride + lane]
  std::size_t out_stride = 0;
};
constexpr std::uint32_t kMaxBlocks = kMaxHeadDim / kBlock;

template <int kRows>
PYKV_INLINE void score_byte_rows(const ByteScores& s, const std::byte* group, const std::byte* values,
                                 std::uint32_t row) {
  vf totals[kRows][kVecs] = {};
  for (std::uint32_t b = 0; b < s.blocks; ++b) {
    vi sums[kRows][kVecs];
    PYKV_UNROLL
    for (int i = 0; i < kRows; ++i) PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v)
      sums[i][v] = vi{} + s.bias[(row + static_cast<std::uint32_t>(i)) * kMaxBlocks + b];
    add_byte_block<kRows>(s.queries + row, values, b, sums);
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const vf d = load_scales(group, b, v);
      PYKV_UNROLL
      for (int i = 0; i < kRows; ++i) totals[i][v] = multiply_add(to_float(sums[i][v]), d, totals[i][v]);
    }
  }
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    const std::uint32_t at = row + static_cast<std::uint32_t>(i);
    store(s.out + at * s.out_stride + v * kLanes, totals[i][v] * s.query_scales[at]);
  }
}

void score_bytes(const PartitionTask& task, float softmax_scale, AttentionScratch& scratch) {
  auto* const queries = reinterpret_cast<ByteQuery*>(scratch.query_pairs);
  std::int32_t bias[kQueryTile * kMaxBlocks];
  float scales[kQueryTile];
  for (std::uint32_t i = 0; i < task.count; ++i)
    scales[i] = split_query(task.queries[i], task.k.dim, queries[i], bias + i * kMaxBlocks) * softmax_scale;
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
    ByteScores s{queries + begin,
                 bias + begin * kMaxBlocks,
                 scales + begin,
                 task.k.dim / kBlock,
                 whole ? scores : scratch.edge,
                 whole ? std::size_t{kPartitionPositions} : kEdgeStride};
    for (std::uint32_t at = 0; at < skip + length; at += kPanelWidth, s.out += kPanelWidth) {
      if (few)
        v_lines.ask(lines);
      else
        ahead.ask_for(at / kPanelWidth, kGroupsAtOnce);
      const std::byte* const group = bytes + at / kPanelWidth * task.k.group_bytes;
      const std::byte* const values = group + task.k.values_offset;
      std::uint32_t row = 0;
      for (; row + 6 <= end - begin; row += 6) score_byte_rows<6>(s, group, values, row);
      for (; row + 3 <= end - begin; row += 3) score_byte_rows<3>(s, group, values, row);
      for (; row < end - begin; ++row) score_byte_rows<1>(s, group, values, row);
    }
    if (!whole)
      for (std::uint32_t i = 0; i < end - begin; ++i)
        std::memcpy(scores + i * kPartitionPositions, scratch.edge + i * kEdgeStride + skip,
                    length * sizeof(float));
  });
}
