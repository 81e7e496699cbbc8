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
