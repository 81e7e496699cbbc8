// The vocabulary of int16.inl.h: AVX-512 VNNI.

// Rows of 16 words beside each other in multiply_pairs().
constexpr int pair_panels_at_once(int rows) { return rows <= 4 ? 4 : 2; }

constexpr int kFewRows = 4;  // most rows of attention_few.inl.h

// Not for V that is a view of K, whose words would have to be turned round.
template <class Task>
PYKV_INLINE bool int16_pays(const Task& task) {
  return !task.v_view_of_k;
}

using Index = std::uint32_t;  // of elements in a loop

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

PYKV_INLINE void clear(float* words, std::size_t count) { std::memset(words, 0, count * sizeof(float)); }

// 2^x, relative error below 2^-22; 0 for -infinity.
PYKV_INLINE vf power_of_two(vf x) {
  const vf f = vf(_mm512_maskz_reduce_ps(kAll, __m512(x), 0x09));  // x - floor(x), of infinities 0
  return vf(_mm512_maskz_scalef_ps(kAll, __m512(power_of_fraction(f)), __m512(x)));
}

// The larger of 16-bit integers.
PYKV_INLINE __m512i larger(__m512i a, __m512i b) { return _mm512_maskz_max_epu16(~__mmask32{}, a, b); }

// From two vectors one: of each the larger lanes of two halves, of four quarters turned to pairs, …
constexpr __mmask8 kQuads = 0xff;
PYKV_INLINE __m512i larger_halves(__m512i a, __m512i b) {
  return larger(_mm512_maskz_shuffle_i64x2(kQuads, a, b, 0x44),
                _mm512_maskz_shuffle_i64x2(kQuads, a, b, 0xee));
}
PYKV_INLINE __m512i larger_quarters(__m512i a, __m512i b) {
  return larger(_mm512_maskz_shuffle_i64x2(kQuads, a, b, 0x88),
                _mm512_maskz_shuffle_i64x2(kQuads, a, b, 0xdd));
}
PYKV_INLINE __m512i larger_quads(__m512i a, __m512i b) {
  return larger(_mm512_maskz_unpacklo_epi64(kQuads, a, b), _mm512_maskz_unpackhi_epi64(kQuads, a, b));
}
PYKV_INLINE __m512i larger_words(__m512i a, __m512i b) {
  const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
  return larger(_mm512_castps_si512(_mm512_maskz_shuffle_ps(kAll, x, y, 0x88)),
                _mm512_castps_si512(_mm512_maskz_shuffle_ps(kAll, x, y, 0xdd)));
}

// The largest lane of each of sixteen vectors of f16 magnitudes, times 2.
PYKV_INLINE vf largest_of_sixteen(__m512i (&most)[16]) {
  __m512i of_four[4];  // 128 bits of each of four vectors
  PYKV_UNROLL
  for (int i = 0; i < 4; ++i)
    of_four[i] = larger_quarters(larger_halves(most[4 * i], most[4 * i + 1]),
                                 larger_halves(most[4 * i + 2], most[4 * i + 3]));
  // Word 4 l + i comes from lane l of of_four[i].
  const __m512i turned =
      larger_words(larger_quads(of_four[0], of_four[1]), larger_quads(of_four[2], of_four[3]));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i each = _mm512_maskz_permutexvar_epi32(kAll, order, turned);
  const __m512i largest = larger(each, _mm512_maskz_srli_epi32(kAll, each, 16));
  const __m256i narrow = _mm512_maskz_cvtepi32_epi16(kAll, largest);
  return vf(_mm512_maskz_cvtph_ps(kAll, _mm256_srli_epi16(narrow, 1)));
}

// Largest magnitudes of the f16 of `count` cells, `stride` bytes apart.
PYKV_INLINE void find_largest_f16(const std::byte* values, std::size_t stride, std::uint32_t dim,
                                  std::uint32_t count, float* largest) {
  for (std::uint32_t c = 0; c < count; c += 16) {
    const std::byte* cells[16];
    PYKV_UNROLL
    for (std::uint32_t i = 0; i < 16; ++i) cells[i] = values + (c + i < count ? c + i : count - 1) * stride;
    __m512i most[16];
    PYKV_UNROLL
    for (__m512i& lanes : most) lanes = _mm512_setzero_si512();
    for (std::size_t d = 0; d < dim; d += 32) {
      const std::size_t left = dim - d;
      const __mmask32 some = left < 32 ? (1U << left) - 1 : ~0U;
      PYKV_UNROLL
      for (int i = 0; i < 16; ++i) {
        const __m512i x = _mm512_maskz_loadu_epi16(some, cells[i] + d * 2);
        most[i] = larger(most[i], _mm512_maskz_add_epi16(~__mmask32{}, x, x));  // without the sign
      }
    }
    const vf of_cells = largest_of_sixteen(most);
    if (c + 16 <= count)
      store(largest + c, of_cells);
    else
      std::memcpy(largest + c, &of_cells, (count - c) * sizeof(float));
  }
}

// The same of `blocks` f16 scales of each cell.
PYKV_INLINE void find_largest_scales(const std::byte* scales, std::uint32_t blocks, std::uint32_t count,
                                     float* largest) {
  find_largest_f16(scales, std::size_t{blocks} * 2, blocks, count, largest);
}

// scaled[c * blocks + b] = factors[c] * the f16 scale b of cell c. Reads 16 factors at a time.
PYKV_INLINE void scale_factors(const std::byte* scales, std::uint32_t blocks, std::uint32_t count,
                               const float* factors, float* scaled) {
  const std::uint32_t all = count * blocks;
  std::uint32_t i = 0;
  if (kLanes % blocks == 0) {
    vi cells;
    for (int l = 0; l < kLanes; ++l) cells[l] = l / static_cast<int>(blocks);
    for (; i + kLanes <= all; i += kLanes) {
      const __m512 of_cells = __m512(load(factors + i / blocks));
      store(scaled + i, vf(_mm512_maskz_permutexvar_ps(kAll, __m512i(cells), of_cells)) *
                            load_f16(scales + std::size_t{i} * 2));
    }
  }
  for (; i < all; ++i) scaled[i] = factors[i / blocks] * load_one_f16(scales + std::size_t{i} * 2);
}

// V of a piece from cell c on, an even slot, as words of a panel; returns the cell behind the last pair.
template <class Value>
PYKV_INLINE std::uint32_t quantize_pairs(const KvPiece& piece, std::uint32_t c, const float* factors,
                                         Value value, float* panel) {
  for (; c + 2 <= piece.length; c += 2)
    store(panel + (piece.first + c) / 2 * kPanelWidth,
          as_float(pair_words(low_half(value(c, 0), splat(factors[c])),
                              low_half(value(c + 1, 0), splat(factors[c + 1])))));
  return c;
}

// Weights times the largest magnitudes of V, which may be NaN where the weight is 0: 0 then.
PYKV_INLINE vf weighted(vf weight, vf largest) {
  const __mmask16 some = _mm512_cmp_ps_mask(__m512(weight), _mm512_setzero_ps(), _CMP_NEQ_UQ);
  return vf(_mm512_maskz_mul_ps(some, __m512(weight), __m512(largest)));
}

PYKV_INLINE vi rounded(vf x) { return vi(_mm512_maskz_cvtps_epi32(kAll, __m512(x))); }

// K whose codes are multiplied as they are stored.
constexpr bool scored_as_bytes(DType type) { return type == DType::q8_0 || type == DType::q4_0; }

// Four codes of each of 16 cells, elements 4 j … 4 j + 3 of block b.
template <DType type>
PYKV_INLINE vi load_codes(const std::byte* values, std::size_t b, std::size_t j) {
  if constexpr (type == DType::q8_0) return load_word_row(values, b * 8 + j, 0);
  const vi nibbles = load_word_row(values, b * 4 + j % 4, 0);
  return (j < 4 ? nibbles : nibbles >> 4) & 0x0f0f0f0f;
}

// Integers of elements from `d` on of a query for such K: bytes, as the stored ones are.
PYKV_INLINE void put_query_bytes(float* prepared, std::uint32_t d, vi q) {
  store_i8(reinterpret_cast<std::int8_t*>(prepared) + d, q);
}

constexpr int kByteGroups = 2;  // of 16 cells multiplied together

// sums[i][g] += Σ u · query i over block b of the 16 cells of group g.
template <DType type, int kRows, int kGroups>
PYKV_INLINE void add_byte_block(const float* const* queries, const std::byte* values, std::size_t group_bytes,
                                std::uint32_t b, vi (&sums)[kRows][kGroups]) {
  PYKV_UNROLL
  for (std::size_t j = 0; j < 8; ++j) {
    vi u[kGroups];
    PYKV_UNROLL
    for (std::size_t g = 0; g < kGroups; ++g) u[g] = load_codes<type>(values + g * group_bytes, b, j);
    PYKV_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const vi four = vi{} + load_int(reinterpret_cast<const std::int8_t*>(queries[i]) + b * kBlock + 4 * j);
      PYKV_UNROLL
      for (int g = 0; g < kGroups; ++g)
        sums[i][g] = vi(_mm512_dpbusd_epi32(__m512i(sums[i][g]), __m512i(u[g]), __m512i(four)));
    }
  }
}
