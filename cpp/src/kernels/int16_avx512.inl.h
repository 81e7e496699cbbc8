// The vocabulary of int16.inl.h: AVX-512 VNNI.

// Rows of 16 words beside each other in multiply_pairs().
constexpr int pair_panels_at_once(int rows) { return rows <= 4 ? 4 : 2; }

// Not for V that is a view of K, whose words would have to be turned round.
PYKV_INLINE bool int16_pays(const PartitionTask& task) { return !task.v_view_of_k; }

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

// Largest magnitudes of the f16 of `count` cells, `stride` bytes apart.
PYKV_INLINE void find_largest_f16(const std::byte* values, std::size_t stride, std::uint32_t dim,
                                  std::uint32_t count, float* largest) {
  for (std::uint32_t c = 0; c < count; ++c) {
    const std::uint16_t most = largest_f16(values + c * stride, dim);
    largest[c] = load_one_f16(reinterpret_cast<const std::byte*>(&most));
  }
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

// A query for K stored as q8_0, q = 128 * high + low: two bytes, as the stored ones are.
struct ByteQuery {
  std::int8_t high[kMaxHeadDim];
  std::int8_t low[kMaxHeadDim];

  PYKV_INLINE void put(std::uint32_t d, vi q) {
    const vi top = (q + 64) >> 7;
    store_i8(high + d, top);
    store_i8(low + d, q - (top << 7));
  }
};

// sums[i] += Σ u · the 32 bytes of a query at `at`.
template <int kRows>
PYKV_INLINE void add_byte_dots(const vi* u, const std::int8_t* at, vi* sums) {
  PYKV_UNROLL
  for (int j = 0; j < 8; ++j) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const vi four = vi{} + load_int(at + static_cast<std::size_t>(i) * sizeof(ByteQuery) + 4 * j);
    sums[i] = vi(_mm512_dpbusd_epi32(__m512i(sums[i]), __m512i(u[j]), __m512i(four)));
  }
}

// sums[i] += Σ u · query i over block b of 16 cells.
template <int kRows>
PYKV_INLINE void add_byte_block(const ByteQuery* queries, const std::byte* values, std::uint32_t b,
                                vi (&sums)[kRows][kVecs]) {
  vi u[8], high[kRows] = {}, low[kRows];
  PYKV_UNROLL
  for (std::size_t j = 0; j < 8; ++j) u[j] = load_word_row(values, b * 8 + j, 0);
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) low[i] = sums[i][0];
  add_byte_dots<kRows>(u, queries->high + b * kBlock, high);
  add_byte_dots<kRows>(u, queries->low + b * kBlock, low);
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) sums[i][0] = (high[i] << 7) + low[i];
}
