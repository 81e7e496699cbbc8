// Vector vocabulary, AVX2 with FMA and F16C: eight lanes.

constexpr int kLanes = 8;
constexpr int kMaxRows = 6;
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

typedef float vf __attribute__((vector_size(32)));
typedef std::int32_t vi __attribute__((vector_size(32)));

PYKV_INLINE vf multiply_add(vf a, vf b, vf c) { return vf(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c))); }

PYKV_INLINE vf load_f16(const std::byte* from) {
  return vf(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

PYKV_INLINE void store_f16(std::byte* to, vf x) {
  const __m128i halves = _mm256_cvtps_ph(__m256(x), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to, &halves, sizeof halves);
}

PYKV_INLINE float load_one_f16(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return _cvtsh_ss(bits);
}

PYKV_INLINE vf load_i8(const std::byte* from) {
  return vf(
      _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))));
}

PYKV_INLINE vi load_u8(const std::byte* from) {
  return vi(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

PYKV_INLINE vf load_bf16(const std::byte* from) {
  return vf(vi(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))) << 16);
}

// table[low four bits of each word].
constexpr bool kLookupIsCheap = false;
PYKV_INLINE vf lookup(vi words, const float* table) {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), __m256i(words));
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), __m256i(words));
  return vf(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(__m256i(words << 28))));
}
