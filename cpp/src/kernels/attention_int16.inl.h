// Attention on 16-bit integers: both products in half the instructions of float32. AVX-512 VNNI.
//
// A query and the K of a cell become integers of one length (Euclidean, kNorm), so that their
// product stays below 2^30 and is wrong by 2^-17 of |q| |k| at most however elements are spread;
// f16 K is wrong by as much already. V of a cell becomes integers up to kMostV; what it stands for
// is multiplied to the softmax's weight, and the weights of a query become integers of length
// kWeightNorm over the partition: by Cauchy and Schwarz no sum over 256 slots exceeds 2^31.
//
// Integer sums are exact, so their order is free, and weights of slots that a query does not see
// are 0: whatever stands there adds nothing. Scales come from one cell, or from what the query
// sees of the partition. So bits depend on slots alone here too.
//
// Two integers stand in a word: elements 2 i and 2 i + 1 of query and K, slots 2 i and 2 i + 1 of
// V and weight. A tile has words [panel][i][lane].

constexpr float kNorm = 32740.0F;  // rounding may add up to half the root of kMaxHeadDim, 12
constexpr float kMostV = 8191.0F;
constexpr float kWeightNorm = 16000.0F;  // 16000 + 8 for rounding, times 8191 * 16 < 2^31
constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.693147181F;
constexpr std::uint32_t kPartitionPairs = kPartitionPositions / 2;

// What x * factor rounds to, in the low half of each word; below 2^22.
PYKV_INLINE vi low_half(vf x, vf factor) {
  return reinterpret_cast<vi>(multiply_add(x, factor, splat(12582912.0F)));  // 1.5 * 2^23
}

PYKV_INLINE vi pair_words(vi low, vi high) {
  return vi(_mm512_mask_mov_epi16(__m512i(high << 16), 0x55555555, __m512i(low)));
}

PYKV_INLINE vi add_pairs(vi sum, vi a, vi b) {
  return vi(_mm512_dpwssd_epi32(__m512i(sum), __m512i(a), __m512i(b)));
}

// most / length, 0 for length 0.
PYKV_INLINE vf factor_for(float most, vf length) {
  const __mmask16 some = _mm512_cmp_ps_mask(__m512(length), _mm512_setzero_ps(), _CMP_NEQ_UQ);
  return vf(_mm512_maskz_div_ps(some, __m512(splat(most)), __m512(length)));
}

PYKV_INLINE vf square_root(vf x) { return vf(_mm512_maskz_sqrt_ps(kAll, __m512(x))); }

// Lanes [0, n) of `from`, 0 behind them.
PYKV_INLINE vf load_some(const float* from, std::uint32_t n) {
  const std::uint32_t mask = n < kLanes ? (1U << n) - 1 : 0xffffU;
  return vf(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from));
}

PYKV_INLINE void store_halves(float* to, vf x, vf factor) {
  const __m512i rounded = _mm512_maskz_cvtps_epi32(kAll, __m512(x * factor));
  const __m256i halves = _mm512_maskz_cvtepi32_epi16(kAll, rounded);
  std::memcpy(to, &halves, sizeof halves);
}

// 2^x, relative error below 2^-22; 0 for -infinity.
PYKV_INLINE vf power_of_two(vf x) {
  const vf f = vf(_mm512_maskz_reduce_ps(kAll, __m512(x), 0x09));  // x - floor(x), of infinities 0
  vf p = splat(1.867130108e-3F);
  p = multiply_add(p, f, splat(9.017030217e-3F));
  p = multiply_add(p, f, splat(5.579991321e-2F));
  p = multiply_add(p, f, splat(2.401644501e-1F));
  p = multiply_add(p, f, splat(6.931513118e-1F));
  p = multiply_add(p, f, splat(1.0F));
  return vf(_mm512_maskz_scalef_ps(kAll, __m512(p), __m512(x)));
}

// A query of `dim` elements as pairs; returns what an integer stands for.
float quantize_query(const float* query, std::uint32_t dim, float* pairs) {
  vf squares{};
  for (std::uint32_t d = 0; d < dim; d += kLanes) {
    const vf x = load_some(query + d, dim - d);
    squares = multiply_add(x, x, squares);
  }
  const vf length = square_root(splat(sum_lanes(squares)));
  const vf factor = factor_for(kNorm, length);
  for (std::uint32_t d = 0; d < dim; d += kLanes)
    store_halves(pairs + d / 2, load_some(query + d, dim - d), factor);
  return length[0] / kNorm;
}

// A group of 16 cells of K as a panel; value(d) has element d of each. Returns what integers
// stand for.
template <class Value>
PYKV_INLINE vf quantize_cells(std::uint32_t dim, Value value, float* panel) {
  vf squares[4] = {};
  for (std::uint32_t d = 0; d < dim; d += 4) PYKV_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) {
    const vf x = value(d + i);
    squares[i] = multiply_add(x, x, squares[i]);
  }
  const vf length = square_root((squares[0] + squares[1]) + (squares[2] + squares[3]));
  const vf factor = factor_for(kNorm, length);
  for (std::uint32_t d = 0; d < dim; d += 2)
    store(panel + d / 2 * kPanelWidth,
          as_float(pair_words(low_half(value(d), factor), low_half(value(d + 1), factor))));
  return length * (1.0F / kNorm);
}

PYKV_INLINE vf quantize_group(const PartitionTask& task, const std::byte* group, float* panel,
                              AttentionScratch& scratch) {
  if (task.k.type == DType::f16) {
    const std::byte* const values = group + task.k.values_offset;
    return quantize_cells(
        task.k.dim, [&](std::uint32_t d) { return load_f16(values + d * kPanelWidth * 2); }, panel);
  }
  decode_panel(k_panel(task.k, group), 0, task.k.dim, scratch.floats);
  return quantize_cells(
      task.k.dim, [&](std::uint32_t d) { return load(scratch.floats + d * kPanelWidth); }, panel);
}

// Σ x[row] · tile over `count` words, of `panels` panels: finish(row, panel, sums) takes each.
template <int kRows, int kPanels, class Finish>
PYKV_INLINE void multiply_pairs(const float* const* x, const float* tile, std::size_t stride,
                                std::uint32_t first, std::uint32_t count, Finish finish) {
  vi sums[kRows][kPanels] = {};
  for (std::size_t k = first; k < std::size_t{first} + count; ++k) {
    vi w[kPanels];
    PYKV_UNROLL
    for (int p = 0; p < kPanels; ++p)
      w[p] = load_words(tile + static_cast<std::size_t>(p) * stride + k * kPanelWidth);
    PYKV_UNROLL
    for (int r = 0; r < kRows; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, x[r] + k, sizeof pair);
      PYKV_UNROLL
      for (int p = 0; p < kPanels; ++p) sums[r][p] = add_pairs(sums[r][p], w[p], vi{} + pair);
    }
  }
  PYKV_UNROLL
  for (int r = 0; r < kRows; ++r) PYKV_UNROLL
  for (int p = 0; p < kPanels; ++p) finish(r, p, sums[r][p]);
}

// body(rows, first row) with the number of rows as a constant, at most 8.
template <class Body>
PYKV_INLINE void for_some_rows(std::uint32_t rows, Body body) {
  switch (rows) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    case 5:
      return body(std::integral_constant<int, 5>{});
    case 6:
      return body(std::integral_constant<int, 6>{});
    case 7:
      return body(std::integral_constant<int, 7>{});
    default:
      return body(std::integral_constant<int, 8>{});
  }
}

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
      s.x + row, s.tile + panel * s.stride, s.stride, 0, s.pairs, [&](int r, int p, vi sums) {
        const vf scale = load(scales + p * kLanes) * s.query_scales[row + static_cast<std::uint32_t>(r)];
        store(out + static_cast<std::size_t>(r) * s.out_stride + p * kLanes, to_float(sums) * scale);
      });
}

void score_panels(const ScorePanels& s, std::uint32_t count) {
  for (std::uint32_t row = 0; row < count; row += kMaxRows)
    for_some_rows(count - row, [&](auto rows) {
      std::uint32_t panel = 0;
      if constexpr (rows.value <= 4)
        for (; panel + 4 <= s.panels; panel += 4) score_block<rows.value, 4>(s, row, panel);
      for (; panel + 2 <= s.panels; panel += 2) score_block<rows.value, 2>(s, row, panel);
      if (panel < s.panels) score_block<rows.value, 1>(s, row, panel);
    });
}

// Asks for a quarter of what is read next, where a piece is long enough to need it: V of this
// piece and K of the next one.
PYKV_INLINE void ask_ahead(const PartitionTask& task, std::size_t piece, std::uint32_t quarter) {
  constexpr std::uint32_t kLong = kBlockCells / 2;
  const auto ask = [&](const std::byte* tile, std::size_t bytes) {
    for (std::size_t at = quarter * bytes / 4; at < (quarter + 1) * bytes / 4; at += 64)
      __builtin_prefetch(tile + at, 0, 2);
  };
  if (task.count == kQueryBlock) return;  // others of a prompt have read it just before
  if (task.pieces[piece].length >= kLong) ask(task.pieces[piece].v_tile, task.v.bytes);
  if (piece + 1 < task.pieces.size() && task.pieces[piece + 1].length >= kLong)
    ask(task.pieces[piece + 1].k_tile, task.k.bytes);
}

// As score_groups() has it.
void score_groups_int16(const PartitionTask& task, ScorePanels s, const Groups& groups,
                        AttentionScratch& scratch) {
  const auto [piece, bytes, skip, length, first] = groups;
  const auto [begin, end] = queries_seeing(task, first, length);
  if (begin == end) return;
  alignas(64) float scales[kGroupsAtOnce * kPanelWidth];
  s.panels = (skip + length + kPanelWidth - 1) / kPanelWidth;
  s.cell_scales = scales;
  for (std::uint32_t p = 0; p < s.panels; ++p) {
    ask_ahead(task, piece, p);
    store(scales + p * kPanelWidth,
          quantize_group(task, bytes + p * task.k.group_bytes, scratch.tile + p * s.stride, scratch));
  }
  s.x += begin;
  s.query_scales += begin;
  float* const scores = scratch.scores + begin * kPartitionPositions + first;
  if (skip == 0 && length % kPanelWidth == 0) {
    s.out = scores;
    s.out_stride = kPartitionPositions;
    return score_panels(s, end - begin);
  }
  s.out = scratch.edge;
  s.out_stride = std::size_t{kGroupsAtOnce} * kPanelWidth;
  score_panels(s, end - begin);
  for (std::uint32_t i = 0; i < end - begin; ++i)
    std::memcpy(scores + i * kPartitionPositions, scratch.edge + i * s.out_stride + skip,
                length * sizeof(float));
}

#include "kernels/attention_bytes.inl.h"

// Whether scores are turned into something else before they are weights.
bool shaped(const PartitionTask& task) { return task.softcap != 0 || task.slopes != nullptr; }

// Scores, times the softmax's scale, and log2 e unless they are shaped.
void score_int16(const PartitionTask& task, AttentionScratch& scratch) {
  if (task.v_view_of_k) return score(task, scratch);
  const float scale = shaped(task) ? task.scale : task.scale * kLog2E;
  if (task.k.type == DType::q8_0) return score_bytes(task, scale, scratch);
  const float* queries[kQueryBlock];
  float scales[kQueryBlock];
  for (std::uint32_t i = 0; i < task.count; ++i) {
    float* const pairs = scratch.query_pairs + i * kMaxHeadDim / 2;
    scales[i] = quantize_query(task.queries[i], task.k.dim, pairs) * scale;
    queries[i] = pairs;
  }
  const std::uint32_t pairs = task.k.dim / 2;
  ScorePanels s;
  s.tile = scratch.tile;
  s.stride = std::size_t{pairs} * kPanelWidth;
  s.pairs = pairs;
  s.x = queries;
  s.query_scales = scales;
  for_groups(task, [&](const Groups& groups) { score_groups_int16(task, s, groups, scratch); });
}

// The largest magnitude of `dim` f16, as f16.
PYKV_INLINE std::uint16_t largest_f16(const std::byte* values, std::uint32_t dim) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  __m256i most = _mm256_setzero_si256();
  for (std::uint32_t d = 0; d < dim; d += 16) {
    const std::uint32_t left = dim - d;
    const auto mask = static_cast<__mmask16>(left < 16 ? (1U << left) - 1 : 0xffffU);
    const __m256i x = _mm256_maskz_loadu_epi16(mask, values + d * 2);
    most = _mm256_max_epu16(most, _mm256_and_si256(x, magnitude));
  }
  const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return static_cast<std::uint16_t>(~_mm_extract_epi16(least, 0));
}

// Largest magnitudes of V of the slots of a piece; of q8_0 those that its scales allow.
void find_largest(const PartitionTask& task, const KvPiece& piece, float* largest,
                  AttentionScratch& scratch) {
  if (task.v.type == DType::f16) {
    const std::size_t stride = std::size_t{task.v.dim} * 2;
    const std::byte* const values = piece.v_tile + task.v.values_offset + piece.cell * stride;
    for (std::uint32_t c = 0; c < piece.length; ++c) {
      const std::uint16_t most = largest_f16(values + c * stride, task.v.dim);
      largest[c] = load_one_f16(reinterpret_cast<const std::byte*>(&most));
    }
    return;
  }
  if (task.v.type == DType::q8_0) {
    const std::uint32_t blocks = task.v.dim / kBlock;
    const std::byte* scale = piece.v_tile + std::size_t{piece.cell} * blocks * 2;
    for (std::uint32_t c = 0; c < piece.length; ++c) {
      float most = 0;
      for (std::uint32_t b = 0; b < blocks; ++b, scale += 2) {
        const float d = __builtin_fabsf(load_one_f16(scale));
        most = d > most || d != d ? d : most;
      }
      largest[c] = 127.0F * most;
    }
    return;
  }
  std::int32_t most[kBlockCells] = {};
  for (std::uint32_t dim = 0; dim < task.v.dim; dim += kPanelWidth) {
    decode_cells(piece.v_tile, task.v, dim, piece.cell, piece.length, scratch.floats);
    for (std::uint32_t c = 0; c < piece.length; ++c) {
      const vi bits = load_words(scratch.floats + c * kPanelWidth) & 0x7fffffff;
      const std::int32_t here = largest_lane(bits);
      most[c] = here > most[c] ? here : most[c];
    }
  }
  std::memcpy(largest, most, piece.length * sizeof(float));
}

// V of a piece, 16 elements from `dim` on, as words of a panel of the partition; value(c) has
// those of its cell c, factors[c] what turns them into integers.
template <class Value>
PYKV_INLINE void quantize_slots(const KvPiece& piece, const float* factors, Value value, float* panel) {
  const auto integer = [&](std::uint32_t c) { return low_half(value(c), splat(factors[c])); };
  const auto half = [&](std::uint32_t c) {
    const std::uint32_t slot = piece.first + c;
    float* const at = panel + slot / 2 * kPanelWidth;
    const vi other = load_words(at);
    store(at, as_float(slot % 2 == 0 ? pair_words(integer(c), other >> 16) : pair_words(other, integer(c))));
  };
  std::uint32_t c = 0;
  if (piece.first % 2 != 0) half(c++);
  for (; c + 2 <= piece.length; c += 2)
    store(panel + (piece.first + c) / 2 * kPanelWidth, as_float(pair_words(integer(c), integer(c + 1))));
  if (c < piece.length) half(c);
}

PYKV_INLINE void quantize_piece(const PartitionTask& task, const KvPiece& piece, std::uint32_t dim,
                                const float* factors, float* panel, AttentionScratch& scratch) {
  if (task.v.type == DType::f16 && dim + kPanelWidth <= task.v.dim) {
    const std::size_t stride = std::size_t{task.v.dim} * 2;
    const std::byte* const values =
        piece.v_tile + task.v.values_offset + piece.cell * stride + std::size_t{dim} * 2;
    return quantize_slots(
        piece, factors, [&](std::uint32_t c) { return load_f16(values + c * stride); }, panel);
  }
  if (task.v.type == DType::q8_0) {
    const std::uint32_t blocks = task.v.dim / kBlock;
    const std::byte* const scales = piece.v_tile + (std::size_t{piece.cell} * blocks + dim / kBlock) * 2;
    const std::byte* const codes =
        piece.v_tile + task.v.values_offset + std::size_t{piece.cell} * task.v.dim + dim;
    float scaled_factors[kBlockCells];
    for (std::uint32_t c = 0; c < piece.length; ++c)
      scaled_factors[c] = factors[c] * load_one_f16(scales + std::size_t{c} * blocks * 2);
    return quantize_slots(
        piece, scaled_factors, [&](std::uint32_t c) { return load_i8(codes + std::size_t{c} * task.v.dim); },
        panel);
  }
  decode_cells(piece.v_tile, task.v, dim, piece.cell, piece.length, scratch.floats);
  quantize_slots(
      piece, factors, [&](std::uint32_t c) { return load(scratch.floats + c * kPanelWidth); }, panel);
}

// Query i's scores become weights times `largest` of their slots, as integers in `pairs`. Returns what
// an integer stands for.
float soften_int16(const PartitionTask& task, std::uint32_t i, const float* largest, float* scores,
                   float* pairs) {
  const std::uint32_t begin = task.begins[i] / kLanes * kLanes;
  const std::uint32_t end = (task.ends[i] + kLanes - 1) / kLanes * kLanes;
  if (shaped(task)) {
    shape_scores(task, i, begin, end, scores);
    for (std::uint32_t j = begin; j < end; j += kLanes) store(scores + j, load(scores + j) * kLog2E);
  }
  hide_unseen(task, i, begin, end, scores);
  vf most = splat(lowest());
  for (std::uint32_t j = begin; j < end; j += kLanes) most = max(load(scores + j), most);
  const float top = max_lane(most);
  vf total{}, squares{};
  for (std::uint32_t j = begin; j < end; j += kLanes) {
    const vf weight = power_of_two(load(scores + j) - top);
    total += weight;
    const __mmask16 some = _mm512_cmp_ps_mask(__m512(weight), _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const vf part = vf(_mm512_maskz_mul_ps(some, __m512(weight), __m512(load(largest + j))));
    squares = multiply_add(part, part, squares);
    store(scores + j, part);
  }
  const vf length = square_root(splat(sum_lanes(squares)));
  const vf factor = factor_for(kWeightNorm, length);
  for (std::uint32_t j = begin; j < end; j += kLanes) store_halves(pairs + j / 2, load(scores + j), factor);
  task.result.max[i] = top * kLn2;
  task.result.sum[i] = sum_lanes(total);
  return length[0] / (kWeightNorm * kMostV);
}

// out = weights · V of one or two panels from `panel` on.
void weigh_panels_int16(const PartitionTask& task, const float* const* weights, const float* scales,
                        std::uint32_t panel, std::uint32_t panels, const float* tile) {
  constexpr std::size_t kStride = std::size_t{kPartitionPairs} * kPanelWidth;
  for (std::uint32_t i = 0; i < task.count; i += kMaxRows) {
    const std::uint32_t last = task.count - i < kMaxRows ? task.count - 1 : i + kMaxRows - 1;
    const std::uint32_t from = task.begins[i] / 2;
    const std::uint32_t count = (task.ends[last] + 1) / 2 - from;
    float* const out = task.result.out + i * task.result.stride + panel * kPanelWidth;
    const auto finish = [&](int r, int p, vi sums) {
      store(out + static_cast<std::size_t>(r) * task.result.stride + p * kLanes,
            to_float(sums) * scales[i + static_cast<std::uint32_t>(r)]);
    };
    for_some_rows(last - i + 1, [&](auto rows) {
      if (panels == 2) return multiply_pairs<rows.value, 2>(weights + i, tile, kStride, from, count, finish);
      multiply_pairs<rows.value, 1>(weights + i, tile, kStride, from, count, finish);
    });
  }
}

void weigh_int16(const PartitionTask& task, AttentionScratch& scratch) {
  if (task.v_view_of_k) return weigh(task, scratch);
  alignas(64) float factors[kPartitionPositions] = {};  // first largest magnitudes
  const float* weights[kQueryBlock];
  float scales[kQueryBlock];
  for (const KvPiece& piece : task.pieces) find_largest(task, piece, factors + piece.first, scratch);
  for (std::uint32_t i = 0; i < task.count; ++i) {
    float* const pairs = scratch.weight_pairs + i * kPartitionPairs;
    std::memset(pairs, 0, kPartitionPairs * sizeof(float));
    weights[i] = pairs;
    scales[i] = 0;
    task.result.sum[i] = 0;
    if (task.begins[i] != task.ends[i])
      scales[i] = soften_int16(task, i, factors, scratch.scores + i * kPartitionPositions, pairs);
  }
  for (std::uint32_t j = 0; j < kPartitionPositions; j += kLanes)
    store(factors + j, factor_for(kMostV, load(factors + j)));
  const std::uint32_t all = (task.v.dim + kPanelWidth - 1) / kPanelWidth;
  for (std::uint32_t panel = 0; panel < all; panel += 2) {
    const std::uint32_t panels = all - panel < 2 ? 1 : 2;
    for (const KvPiece& piece : task.pieces)
      for (std::uint32_t p = 0; p < panels; ++p)
        quantize_piece(task, piece, (panel + p) * kPanelWidth, factors + piece.first,
                       scratch.tile + std::size_t{p} * kPartitionPairs * kPanelWidth, scratch);
    weigh_panels_int16(task, weights, scales, panel, panels, scratch.tile);
  }
}
