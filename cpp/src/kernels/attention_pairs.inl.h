// Attention on bf16: factors are rounded to bf16 and multiplied two at a time, sums are float32.
// Pairs are elements of K and query, slots of V and weight. A pair of slots begins at an even
// one, whatever pieces hold it, so that bits depend on slots alone here too; the half of a pair
// that a query does not see is a product of zeros.

// bf16 of both, of lane c in the low and high half of word c.
PYKV_INLINE vi bf16_pairs(vf low, vf high) {
  alignas(64) static constexpr std::uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i halves = __m512i(_mm512_cvtne2ps_pbh(__m512(high), __m512(low)));
  return vi(_mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), halves));
}

// Row r of a panel holds its elements 2 r and 2 r + 1.
struct PairTile {
  float* words;

  PYKV_INLINE float* at(std::size_t row) const { return words + row / 2 * kPanelWidth; }
  PYKV_INLINE void put(std::size_t row, int, vf first, vf second) const {
    store(at(row), as_float(bf16_pairs(first, second)));
  }
  PYKV_INLINE void put_bf16(std::size_t row, int, vi pairs) const { store(at(row), as_float(pairs)); }
  // One half of a pair of which the other was put before, or is zero.
  PYKV_INLINE void put(std::size_t row, int, vf x) const {
    const vi other = load_words(at(row));
    const vi pairs = row % 2 == 0 ? bf16_pairs(x, vf{}) : bf16_pairs(vf{}, x);
    store(at(row), as_float(pairs | other));
  }
};

struct PairMath {
  PYKV_INLINE static vf broadcast(const float* x) {
    std::int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return as_float(vi{} + pair);
  }
  PYKV_INLINE static vf add(vf x, vf w, vf sum) {
    return vf(_mm512_dpbf16_ps(__m512(sum), __m512bh(__m512i(w)), __m512bh(__m512i(x))));
  }
};

struct PairScheme {
  using Tile = PairTile;
  using Math = PairMath;
  static constexpr std::uint32_t kPerWord = 2;
};

PYKV_INLINE void to_bf16(const float* from, float* to) {
  const __m256i pairs = __m256i(_mm512_cvtneps_pbh(__m512(load(from))));
  std::memcpy(to, &pairs, sizeof pairs);
}

// Neighbours as pairs; n is a multiple of 8.
void to_bf16(const float* from, std::uint32_t n, float* to) {
  std::uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) to_bf16(from + i, to + i / 2);
  if (i == n) return;
  float padded[kLanes] = {}, pairs[kLanes / 2];
  std::memcpy(padded, from + i, sizeof padded / 2);
  to_bf16(padded, pairs);
  std::memcpy(to + i / 2, pairs, sizeof pairs / 2);
}

void prepare_pairs(const QueryTask& task) { to_bf16(task.query, task.k.dim, task.prepared); }

void score_pairs(const PartitionTask& task, AttentionScratch& scratch) {
  score_pieces<PairScheme>(task, scratch);
}

constexpr std::uint32_t kPairSlots = 64;  // of V decoded at a time

// Slots of a partition whose V is decoded, of `panels` panels.
struct DecodedSlots {
  std::uint32_t begin;
  std::uint32_t panels;
  const float* tile;
  std::size_t stride;  // floats from panel to panel
};

// V of slots [begin, begin + kPairSlots) for panels from `panel` on; 0 where no piece is.
void decode_slots(const PartitionTask& task, std::uint32_t panel, const DecodedSlots& to, float* tile) {
  const std::uint32_t end = to.begin + kPairSlots;
  bool whole = false;
  for (const KvPiece& piece : task.pieces)
    whole = whole || (piece.first <= to.begin && piece.first + piece.length >= end);
  if (!whole) std::memset(tile, 0, to.panels * to.stride * sizeof(float));
  for (const KvPiece& piece : task.pieces) {
    const std::uint32_t from = piece.first > to.begin ? piece.first : to.begin;
    const std::uint32_t until = piece.first + piece.length < end ? piece.first + piece.length : end;
    if (from >= until) continue;
    for (std::uint32_t p = 0; p < to.panels; ++p)
      decode_cell_rows(piece.v_tile, task.v, (panel + p) * kPanelWidth, piece.cell + from - piece.first,
                       until - from, PairTile{tile + p * to.stride}, from - to.begin);
  }
}

// out += weights · V of slots [from, to) for queries that see all of them.
void weigh_slots(const DecodedSlots& v, std::uint32_t from, std::uint32_t to, const float* const* weights,
                 std::uint32_t rows, float* out, std::size_t out_stride) {
  const auto pairs = [&](const float* tile, std::size_t stride, std::uint32_t first, std::uint32_t count) {
    multiply<PairMath>({tile, stride, v.panels, count, first / 2, out_stride}, weights, rows, out);
  };
  const auto half = [&](std::uint32_t slot, std::int32_t seen) {
    float pair[kPanelsAtOnce * kPanelWidth];
    for (std::uint32_t p = 0; p < v.panels; ++p) {
      const vi words = load_words(v.tile + p * v.stride + (slot - v.begin) / 2 * kPanelWidth);
      store(pair + p * kPanelWidth, as_float(words & seen));
    }
    pairs(pair, kPanelWidth, slot, 1);
  };
  if (from >= to) return;
  if (from % 2 != 0) half(from++, static_cast<std::int32_t>(0xffff0000));
  const std::uint32_t last = to / 2 * 2;
  if (from < last) pairs(v.tile + (from - v.begin) / 2 * kPanelWidth, v.stride, from, (last - from) / 2);
  if (from < to && to % 2 != 0) half(last, 0x0000ffff);
}

// Queries are multiplied together as far as all of them see, and each alone before and behind
// that.
void weigh_decoded(const PartitionTask& task, const DecodedSlots& v, const float* const* weights,
                   float* out) {
  const std::size_t stride = task.result.stride;
  const auto inside = [&](std::uint32_t slot) {
    const std::uint32_t end = v.begin + kPairSlots;
    return slot < v.begin ? v.begin : slot < end ? slot : end;
  };
  const auto [first, last] = queries_seeing(task, v.begin, kPairSlots);
  for (std::uint32_t i = first; i < last; i += kMaxRows) {
    const std::uint32_t rows = last - i < kMaxRows ? last - i : kMaxRows;
    const std::uint32_t from = (inside(task.begins[i + rows - 1]) + 1) / 2 * 2;
    const std::uint32_t to = inside(task.ends[i]) / 2 * 2;
    const std::uint32_t middle = from < to ? from : to;  // none see all: each alone
    for (std::uint32_t r = i; r < i + rows; ++r)
      weigh_slots(v, inside(task.begins[r]), middle, weights + r, 1, out + r * stride, stride);
    weigh_slots(v, from, to, weights + i, rows, out + i * stride, stride);
    for (std::uint32_t r = i; r < i + rows; ++r) {
      const std::uint32_t begin = inside(task.begins[r]);
      weigh_slots(v, begin > to ? begin : to, inside(task.ends[r]), weights + r, 1, out + r * stride, stride);
    }
  }
}

// Softmax of each query, and its weights as bf16.
void weigh_pairs(const PartitionTask& task, AttentionScratch& scratch) {
  if (task.v_view_of_k) return weigh(task, scratch);
  const float* weights[kQueryTile];
  soften(task, scratch, weights);
  for (std::uint32_t i = 0; i < task.count; ++i) {
    float* const pairs = scratch.weight_pairs + i * kPartitionPositions / 2;
    const std::uint32_t begin = task.begins[i] / kLanes * kLanes;
    to_bf16(weights[i] + begin, (task.ends[i] + kLanes - 1) / kLanes * kLanes - begin, pairs + begin / 2);
    weights[i] = pairs;
  }
  const std::uint32_t all = (task.v.dim + kPanelWidth - 1) / kPanelWidth;
  constexpr std::size_t kStride = std::size_t{kPairSlots} / 2 * kPanelWidth;
  for (std::uint32_t panel = 0; panel < all; panel += kPanelsAtOnce)
    for (std::uint32_t slot = 0; slot < kPartitionPositions; slot += kPairSlots) {
      const std::uint32_t panels = all - panel < kPanelsAtOnce ? all - panel : kPanelsAtOnce;
      const DecodedSlots v{slot, panels, scratch.tile, kStride};
      const auto [first, last] = queries_seeing(task, slot, kPairSlots);
      if (first >= last) continue;
      decode_slots(task, panel, v, scratch.tile);
      weigh_decoded(task, v, weights, task.result.out + panel * kPanelWidth);
    }
}
