// Both products of attention on 16-bit integers for few queries of one KV head, as a decoding session
// has them: a vector of K or V becomes integers in registers and is multiplied at once with all queries,
// where many of them share a tile of integers in memory. The integers are the same, and so are the sums.

PYKV_INLINE std::int32_t load_pair(const float* from) {
  std::int32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return pair;
}

// Whether a task's K or V is used this way.
PYKV_INLINE bool few_scores(const PartitionTask& task) {
  return task.count <= kFewRows && !task.converted && task.k.type == DType::f16;
}
PYKV_INLINE bool few_weights(const PartitionTask& task) {
  return task.count <= kFewRows && !task.converted && task.v.dim % kPanelWidth == 0 &&
         (task.v.type == DType::f16 || task.v.type == DType::q8_0 || task.v.type == DType::q4_0);
}

// Queries of 16-bit integers, as pairs, and what those stand for.
struct FewQueries {
  const float* const* pairs;
  const float* scales;  // times the softmax's
};

// Scores of some groups of 16 cells of K, f16, to out[query * stride + 16 * group + lane].
template <int kRows, int kGroups>
void score_few_cells(const FewQueries& queries, const TileLayout& k, const std::byte* groups, float* out,
                     std::size_t stride, LinesAhead& ahead, std::size_t lines) {
  const auto value = [&](int g, Index d) {
    return load_f16(groups + g * k.group_bytes + d * kPanelWidth * 2);
  };
  vf squares[kGroups][4] = {};
  for (Index d = 0; d < k.dim; d += 4) PYKV_UNROLL
  for (int g = 0; g < kGroups; ++g) PYKV_UNROLL
  for (Index i = 0; i < 4; ++i) {
    const vf x = value(g, d + i);
    squares[g][i] = multiply_add(x, x, squares[g][i]);
  }
  vf scales[kGroups], factors[kGroups];
  PYKV_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    const vf length = square_root((squares[g][0] + squares[g][1]) + (squares[g][2] + squares[g][3]));
    factors[g] = factor_for(kNorm, length);
    scales[g] = length * (1.0F / kNorm);
  }
  vi sums[kRows][kGroups] = {};
  for (Index d = 0; d < k.dim; d += 2) {
    ahead.ask(lines);
    vi pairs[kRows];
    PYKV_UNROLL
    for (int r = 0; r < kRows; ++r) pairs[r] = vi{} + load_pair(queries.pairs[r] + d / 2);
    PYKV_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const vi words = pair_words(low_half(value(g, d), factors[g]), low_half(value(g, d + 1), factors[g]));
      PYKV_UNROLL
      for (int r = 0; r < kRows; ++r) sums[r][g] = add_pairs(sums[r][g], words, pairs[r]);
    }
  }
  PYKV_UNROLL
  for (int r = 0; r < kRows; ++r) PYKV_UNROLL
  for (int g = 0; g < kGroups; ++g)
    store(out + static_cast<std::size_t>(r) * stride + g * kPanelWidth,
          to_float(sums[r][g]) * (scales[g] * queries.scales[r]));
}

template <int kRows>
void score_few(const PartitionTask& task, const FewQueries& queries, AttentionScratch& scratch) {
  const VTiles tiles(task);
  LinesAhead ahead(tiles.all(), task.v.bytes);
  const std::size_t lines = (task.v.bytes / 64 + task.k.dim / 2 - 1) / (task.k.dim / 2);
  for_groups(task, [&](const Groups& groups) {
    const auto [piece, bytes, skip, length, first, panel] = groups;
    static_cast<void>(piece), static_cast<void>(panel);
    const std::byte* const values = bytes + task.k.values_offset;
    float* const scores = scratch.scores + first;
    if (skip == 0 && length == kGroupsAtOnce * kPanelWidth)
      return score_few_cells<kRows, kGroupsAtOnce>(queries, task.k, values, scores, kPartitionPositions,
                                                   ahead, lines);
    constexpr std::uint32_t kStride = kGroupsAtOnce * kPanelWidth;
    for (std::uint32_t at = skip / kPanelWidth * kPanelWidth; at < skip + length; at += kPanelWidth)
      score_few_cells<kRows, 1>(queries, task.k, values + at / kPanelWidth * task.k.group_bytes,
                                scratch.edge + at, kStride, ahead, lines / 4);
    for (std::uint32_t r = 0; r < kRows; ++r)
      std::memcpy(scores + r * kPartitionPositions, scratch.edge + r * kStride + skip,
                  length * sizeof(float));
  });
}

struct NoSlot {
  PYKV_INLINE vi operator()(int) const { return vi{}; }
};

// The sum of V of a partition, panels [panel, panel + kPanels), weighted for each query.
template <int kRows, int kPanels>
struct FewSums {
  vi sums[kRows][kPanels * kVecs] = {};
  const float* const* weights;  // of queries, pairs of slots

  // Slots 2 pair and 2 pair + 1; low(c) and high(c) have integers of vector c.
  template <class Low, class High>
  PYKV_INLINE void add(std::uint32_t pair, Low low, High high) {
    vi weight[kRows];
    PYKV_UNROLL
    for (int r = 0; r < kRows; ++r) weight[r] = vi{} + load_pair(weights[r] + pair);
    PYKV_UNROLL
    for (int c = 0; c < kPanels * kVecs; ++c) {
      const vi words = pair_words(low(c), high(c));
      PYKV_UNROLL
      for (int r = 0; r < kRows; ++r) sums[r][c] = add_pairs(sums[r][c], words, weight[r]);
    }
  }

  // The cells of a piece; integer(cell, c) has vector c of a cell's.
  template <class Integer>
  PYKV_INLINE void add_piece(const KvPiece& piece, Integer integer, LinesAhead& ahead, std::size_t lines) {
    std::uint32_t c = 0;
    if (piece.first % 2 != 0) {
      add(piece.first / 2, NoSlot{}, [&](int v) { return integer(0U, v); });
      ++c;
    }
    for (; c + 2 <= piece.length; c += 2) {
      ahead.ask(lines);
      add((piece.first + c) / 2, [&](int v) { return integer(c, v); },
          [&](int v) { return integer(c + 1, v); });
    }
    if (c < piece.length) add((piece.first + c) / 2, [&](int v) { return integer(c, v); }, NoSlot{});
  }
};

template <DType type, int kRows, int kPanels>
void weigh_few_panels(const PartitionTask& task, const float* const* weights, const float* scales,
                      const float* factors, const float* scaled, std::uint32_t panel) {
  FewSums<kRows, kPanels> sums;
  sums.weights = weights;
  const std::size_t lines = (task.k.bytes / 64 + kBlockCells / 2 - 1) / (kBlockCells / 2);
  LinesAhead ahead(panel == 0 ? task.ahead : std::span<const std::byte* const>(), task.k.bytes);
  const std::uint32_t dim = panel * kPanelWidth;
  for (const KvPiece& piece : task.pieces) {
    const std::byte* const values = piece.v_tile + task.v.values_offset;
    if constexpr (type == DType::f16) {
      const std::size_t stride = std::size_t{task.v.dim} * 2;
      const std::byte* const first = values + piece.cell * stride + std::size_t{dim} * 2;
      sums.add_piece(
          piece,
          [&](std::size_t c, int v) {
            return low_half(load_f16(first + c * stride + v * kLanes * 2), splat(factors[piece.first + c]));
          },
          ahead, lines);
    } else {
      const std::size_t blocks = task.v.dim / kBlock;
      const std::byte* const first = values + piece.cell * blocks * code_bytes(type);
      const float* const of_blocks = scaled + piece.first * blocks;
      sums.add_piece(
          piece,
          [&](std::size_t c, int v) {
            const std::size_t at = dim + static_cast<std::size_t>(v * kLanes);
            const std::size_t block = c * blocks + at / kBlock;
            const int half = static_cast<int>(at / kPanelWidth % 2);
            return low_half(cell_codes<type>(first + block * code_bytes(type), nullptr, half, 0),
                            splat(of_blocks[block]));
          },
          ahead, lines);
    }
  }
  PYKV_UNROLL
  for (int r = 0; r < kRows; ++r) PYKV_UNROLL
  for (int c = 0; c < kPanels * kVecs; ++c)
    store(task.result.out + static_cast<std::size_t>(r) * task.result.stride + dim + c * kLanes,
          to_float(sums.sums[r][c]) * scales[r]);
}

template <DType type, int kRows>
void weigh_few(const PartitionTask& task, const float* const* weights, const float* scales,
               const float* factors, AttentionScratch& scratch) {
  if (type != DType::f16) {
    const std::uint32_t blocks = task.v.dim / kBlock;
    for (const KvPiece& piece : task.pieces)
      scale_factors(piece.v_tile + std::size_t{piece.cell} * blocks * 2, blocks, piece.length,
                    factors + piece.first, scratch.floats + piece.first * blocks);
  }
  const std::uint32_t all = task.v.dim / kPanelWidth;
  std::uint32_t panel = 0;
  for (; panel + 4 <= all; panel += 4)
    weigh_few_panels<type, kRows, 4>(task, weights, scales, factors, scratch.floats, panel);
  for (; panel < all; ++panel)
    weigh_few_panels<type, kRows, 1>(task, weights, scales, factors, scratch.floats, panel);
}
