// The vocabulary of int16.inl.h: AVX2.

// Rows of 16 words beside each other in multiply_pairs(): sums, operands and a product fit 16 registers.
constexpr int pair_panels_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

constexpr int kFewRows = 0;  // most rows of attention_few.inl.h

// Not for V that is a view of K, nor for types that must become float32 first: a few queries would
// take up to twice as long, and what is chosen may not depend on their number.
template <class Task>
PYKV_INLINE bool int16_pays(const Task& task) {
  const auto quick = [](DType type) { return type == DType::f16 || type == DType::q8_0; };
  return !task.v_view_of_k && quick(task.k.type) && quick(task.v.type);
}

using Index = std::size_t;  // of elements in a loop

PYKV_INLINE vi pair_words(vi low, vi high) {
  return vi(_mm256_blend_epi16(__m256i(high << 16), __m256i(low), 0x55));
}

// What becomes of NaN may wrap.
PYKV_INLINE vi add_pairs(vi sum, vi a, vi b) {
  return vi(vu(sum) + vu(_mm256_madd_epi16(__m256i(a), __m256i(b))));
}

PYKV_INLINE vf where_not_zero(vf condition, vf x) {
  return vf(_mm256_and_ps(__m256(x), _mm256_cmp_ps(__m256(condition), _mm256_setzero_ps(), _CMP_NEQ_UQ)));
}

// most / length, 0 for length 0.
PYKV_INLINE vf factor_for(float most, vf length) { return where_not_zero(length, splat(most) / length); }

PYKV_INLINE vf square_root(vf x) { return vf(_mm256_sqrt_ps(__m256(x))); }

// Lanes [0, n) of `from`, 0 behind them.
PYKV_INLINE vf load_some(const float* from, std::uint32_t n) {
  if (n >= kLanes) return load(from);
  const vi lanes{0, 1, 2, 3, 4, 5, 6, 7};
  return vf(_mm256_maskload_ps(from, __m256i(lanes < static_cast<std::int32_t>(n))));
}

PYKV_INLINE vi rounded(vf x) { return vi(_mm256_cvtps_epi32(__m256(x))); }

PYKV_INLINE void store_halves(float* to, vf x, vf factor) {
  const __m256i words = __m256i(rounded(x * factor));
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  std::memcpy(to, &halves, sizeof halves);
}

PYKV_INLINE void clear(float* words, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) store(words + i, vf{});
}

// 2^x for x <= 0, relative error below 2^-22; 0 below -126.
PYKV_INLINE vf power_of_two(vf x) {
  const vf bounded = vf(_mm256_max_ps(__m256(splat(-127.0F)), __m256(x)));  // NaN stays
  const vf whole = vf(_mm256_floor_ps(__m256(bounded)));
  const vf f = bounded - whole;
  return power_of_fraction(f) * as_float((rounded(whole) + 127) << 23);
}

// Of 16-bit integers, `most` and the magnitudes of f16.
PYKV_INLINE __m256i larger_magnitudes(__m256i most, __m256i x) {
  return _mm256_max_epu16(most, _mm256_and_si256(x, _mm256_set1_epi16(0x7fff)));
}

// The largest of each of eight vectors of f16 magnitudes.
PYKV_INLINE vf largest_of_eight(const __m256i (&most)[8]) {
  __m128i x[8];
  PYKV_UNROLL
  for (int i = 0; i < 8; ++i)
    x[i] = _mm_max_epu16(_mm256_castsi256_si128(most[i]), _mm256_extracti128_si256(most[i], 1));
  const auto words = [](__m128i a, __m128i b) {
    return _mm_max_epu16(_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b));
  };
  const auto pairs = [](__m128i a, __m128i b) {
    return _mm_max_epu16(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
  };
  const auto fours = [](__m128i a, __m128i b) {
    return _mm_max_epu16(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
  };
  const auto four = [&](int i) { return pairs(words(x[i], x[i + 1]), words(x[i + 2], x[i + 3])); };
  return vf(_mm256_cvtph_ps(fours(four(0), four(4))));
}

// Largest magnitudes of the f16 of `count` cells, `stride` bytes apart.
PYKV_INLINE void find_largest_f16(const std::byte* values, std::size_t stride, std::uint32_t dim,
                                  std::uint32_t count, float* largest) {
  const std::size_t whole = dim / 16 * 32;  // bytes; a multiple of 8 elements is left
  for (std::uint32_t c = 0; c < count; c += 8) {
    const std::byte* cells[8];
    PYKV_UNROLL
    for (std::uint32_t i = 0; i < 8; ++i) cells[i] = values + (c + i < count ? c + i : count - 1) * stride;
    __m256i most[8];
    PYKV_UNROLL
    for (int i = 0; i < 8; ++i) most[i] = _mm256_setzero_si256();
    for (std::size_t at = 0; at < whole; at += 32) PYKV_UNROLL
    for (int i = 0; i < 8; ++i) most[i] = larger_magnitudes(most[i], __m256i(load_words(cells[i] + at)));
    if (dim % 16 != 0) PYKV_UNROLL
    for (int i = 0; i < 8; ++i) {
      const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(cells[i] + whole));
      most[i] = larger_magnitudes(most[i], _mm256_zextsi128_si256(last));
    }
    const vf of_cells = largest_of_eight(most);
    std::memcpy(largest + c, &of_cells, (count - c < 8 ? count - c : 8) * sizeof(float));
  }
}

// The same of `blocks` f16 scales of each cell.
PYKV_INLINE void find_largest_scales(const std::byte* scales, std::uint32_t blocks, std::uint32_t count,
                                     float* largest) {
  for (std::uint32_t c = 0; c < count; ++c) {
    float most = 0;
    for (std::uint32_t b = 0; b < blocks; ++b, scales += 2) {
      const float d = __builtin_fabsf(load_one_f16(scales));
      most = d > most || d != d ? d : most;
    }
    largest[c] = most;
  }
}

// scaled[c * blocks + b] = factors[c] * the f16 scale b of cell c.
PYKV_INLINE void scale_factors(const std::byte* scales, std::uint32_t blocks, std::uint32_t count,
                               const float* factors, float* scaled) {
  for (std::uint32_t c = 0; c < count; ++c)
    for (std::uint32_t b = 0; b < blocks; ++b, scales += 2)
      scaled[c * blocks + b] = factors[c] * load_one_f16(scales);
}

// V of a piece from cell c on, an even slot, as words of a panel; returns the cell behind the last pair.
template <class Value>
PYKV_INLINE std::uint32_t quantize_pairs(const KvPiece& piece, std::uint32_t c, const float* factors,
                                         Value value, float* panel) {
  float* to = panel + (piece.first + c) / 2 * kPanelWidth;
  std::size_t cell = c;
  for (const std::size_t length = piece.length; cell + 2 <= length; cell += 2, to += kPanelWidth) {
    const vf low = splat(factors[cell]), high = splat(factors[cell + 1]);
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v)
      store(to + v * kLanes,
            as_float(pair_words(low_half(value(cell, v), low), low_half(value(cell + 1, v), high))));
  }
  return static_cast<std::uint32_t>(cell);
}

// Weights times the largest magnitudes of V, which may be NaN where the weight is 0: 0 then.
PYKV_INLINE vf weighted(vf weight, vf largest) { return where_not_zero(weight, weight * largest); }

// K whose codes are multiplied as they are stored.
constexpr bool scored_as_bytes(DType type) { return type == DType::q8_0; }

// Integers of elements from `d` on of a query for such K: of each block the even ones, as pairs,
// then the odd ones.
PYKV_INLINE void put_query_bytes(float* prepared, std::uint32_t d, vi q) {
  typedef std::int16_t narrow __attribute__((vector_size(2 * kLanes)));
  const narrow x = __builtin_convertvector(__builtin_shufflevector(q, q, 0, 2, 4, 6, 1, 3, 5, 7), narrow);
  auto* const even = reinterpret_cast<char*>(prepared) + (d / kBlock * kBlock + d % kBlock / 2) * 2;
  std::memcpy(even, &x, sizeof x / 2);
  std::memcpy(even + kBlock, reinterpret_cast<const char*>(&x) + sizeof x / 2, sizeof x / 2);
}

// sums[i] += Σ u · the 16 even or odd elements of block b of 16 cells: their bytes are 16-bit integers
// after one mask or shift.
template <bool kOdd, int kRows>
PYKV_INLINE void add_half_block(const float* const* queries, const std::byte* values, std::uint32_t b,
                                vi (&sums)[kRows][kVecs]) {
  PYKV_ROLLED
  for (std::size_t j = 0; j < 8; ++j) {
    vi w[kVecs];
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      w[v] = load_word_row(values, b * 8 + j, v);
      w[v] = kOdd ? vi(_mm256_srli_epi16(__m256i(w[v]), 8)) : w[v] & 0x00ff00ff;
    }
    PYKV_UNROLL
    for (int i = 0; i < kRows; ++i) {
      std::int32_t pair;
      std::memcpy(&pair, queries[i] + b * kBlock / 2 + (kOdd ? kBlock / 4 : 0) + j, sizeof pair);
      PYKV_UNROLL
      for (int v = 0; v < kVecs; ++v) sums[i][v] = add_pairs(sums[i][v], w[v], vi{} + pair);
    }
  }
}

constexpr int kByteGroups = 1;  // of 16 cells multiplied together

// sums[i] += Σ u · query i over block b of 16 cells.
template <DType type, int kRows, int kGroups>
PYKV_INLINE void add_byte_block(const float* const* queries, const std::byte* values, std::size_t,
                                std::uint32_t b, vi (&sums)[kRows][kVecs]) {
  static_assert(kGroups == 1 && type == DType::q8_0);
  add_half_block<false>(queries, values, b, sums);
  add_half_block<true>(queries, values, b, sums);
}
