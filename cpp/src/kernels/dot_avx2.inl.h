// 32 integers of each lane in words of four neighbours, as the 16-bit multiply-add of
// unsigned and signed bytes takes them. It saturates, so ranges matter: |a| <= 127.

// 0 … kMost.
template <int kMost>
struct Codes {
  // Sums of two products that fit 16 bits together.
  static constexpr int kAtOnce = 32767 / (2 * 127 * kMost);
  vi q[8];
  Codes() = default;
  PYKV_INLINE explicit Codes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) q[j] = words[j];
  }
};

// A sum that is made here and now: gcc would make all products first and add them as a tree, for which
// there are not enough registers.
PYKV_INLINE __m256i in_order(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

// sums[v][i] += Σ weights[v] * a[i * 32 …] over words [kFirst, kLast), exactly.
template <int kRows, int kFirst = 0, int kLast = 8, int kWide, int kMost>
PYKV_INLINE void add_dots(const Codes<kMost> (&weights)[kWide], const std::int8_t* a, vi (*sums)[kRows]) {
  constexpr int kAtOnce = Codes<kMost>::kAtOnce;
  PYKV_UNROLL
  for (int first = kFirst; first < kLast; first += kAtOnce) {
    const int last = first + kAtOnce < kLast ? first + kAtOnce : kLast;
    __m256i pairs[kWide][kRows];
    PYKV_UNROLL
    for (int j = first; j < last; ++j) PYKV_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const __m256i four = _mm256_set1_epi32(load_int(a + 32 * i + 4 * j));
      PYKV_UNROLL
      for (int v = 0; v < kWide; ++v) {
        const __m256i products = _mm256_maddubs_epi16(__m256i(weights[v].q[j]), four);
        pairs[v][i] = j == first ? products : in_order(_mm256_add_epi16(pairs[v][i], products));
      }
    }
    PYKV_UNROLL
    for (int v = 0; v < kWide; ++v) PYKV_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const __m256i products = _mm256_madd_epi16(pairs[v][i], _mm256_set1_epi16(1));
      sums[v][i] = vi(in_order(_mm256_add_epi32(__m256i(sums[v][i]), products)));
    }
  }
}

// -128 … 127, the sign moved to the other operand: two products, 2 * 128 * 127, fit 16 bits.
constexpr int kBytesBias = 0;
struct Bytes {
  vi value[8];
  vi magnitude[8];
  Bytes() = default;
  PYKV_INLINE explicit Bytes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) {
      value[j] = words[j] ^ static_cast<std::int32_t>(0x80808080);
      magnitude[j] = vi(_mm256_abs_epi8(__m256i(value[j])));
    }
  }
};

template <int kRows, int kFirst = 0, int kLast = 8, int kWide>
PYKV_INLINE void add_dots(const Bytes (&weights)[kWide], const std::int8_t* a, vi (*sums)[kRows]) {
  PYKV_UNROLL
  for (int j = kFirst; j < kLast; ++j) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const __m256i four = _mm256_set1_epi32(load_int(a + 32 * i + 4 * j));
    PYKV_UNROLL
    for (int v = 0; v < kWide; ++v) {
      const __m256i signed_four = _mm256_sign_epi8(four, __m256i(weights[v].value[j]));
      const __m256i pairs = _mm256_maddubs_epi16(__m256i(weights[v].magnitude[j]), signed_four);
      const __m256i products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
      sums[v][i] = vi(in_order(_mm256_add_epi32(__m256i(sums[v][i]), products)));
    }
  }
}
