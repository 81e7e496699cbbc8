// 32 integers of each lane in words of four neighbours, as the 16-bit multiply-add of
// unsigned and signed bytes takes them. It saturates, so ranges matter: |a| <= 127.

// 0 … kMost.
template <int kMost>
struct Codes {
  // Sums of two products that fit 16 bits together.
  static constexpr int kAtOnce = 32767 / (2 * 127 * kMost);
  vi q[8];
  PYKV_INLINE explicit Codes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) q[j] = words[j];
  }
};

// Over words [kFirst, kLast).
template <int kRows, int kFirst = 0, int kLast = 8, int kMost>
PYKV_INLINE void add_dots(const Codes<kMost>& weight, const std::int8_t* a, vi* sums) {
  constexpr int kAtOnce = Codes<kMost>::kAtOnce;
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) PYKV_UNROLL
  for (int first = kFirst; first < kLast; first += kAtOnce) {
    __m256i pairs = _mm256_setzero_si256();
    const int last = first + kAtOnce < kLast ? first + kAtOnce : kLast;
    PYKV_UNROLL
    for (int j = first; j < last; ++j) {
      const __m256i four = _mm256_set1_epi32(load_int(a + 32 * i + 4 * j));
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(__m256i(weight.q[j]), four));
    }
    sums[i] += vi(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
}

// -128 … 127, the sign moved to the other operand: two products, 2 * 128 * 127, fit 16 bits.
constexpr int kBytesBias = 0;
struct Bytes {
  vi value[8];
  vi magnitude[8];
  PYKV_INLINE explicit Bytes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) {
      value[j] = words[j] ^ static_cast<std::int32_t>(0x80808080);
      magnitude[j] = vi(_mm256_abs_epi8(__m256i(value[j])));
    }
  }
};

template <int kRows, int kFirst = 0, int kLast = 8>
PYKV_INLINE void add_dots(const Bytes& weight, const std::int8_t* a, vi* sums) {
  PYKV_UNROLL
  for (int j = kFirst; j < kLast; ++j) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const __m256i four = _mm256_set1_epi32(load_int(a + 32 * i + 4 * j));
    const __m256i signed_four = _mm256_sign_epi8(four, __m256i(weight.value[j]));
    const __m256i pairs = _mm256_maddubs_epi16(__m256i(weight.magnitude[j]), signed_four);
    sums[i] += vi(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
}
