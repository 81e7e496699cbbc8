// Vector vocabulary, AVX-512 (F, BW, DQ, VL): sixteen lanes, a whole panel.

constexpr int kLanes = 16;
constexpr int kMaxRows = 8;
constexpr int panels_at_once(int rows) { return rows <= 4 ? 4 : 2; }

typedef float vf __attribute__((vector_size(64)));
typedef std::int32_t vi __attribute__((vector_size(64)));

PYKV_INLINE vf multiply_add(vf a, vf b, vf c) { return vf(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c))); }

// The maskz forms, all lanes on, because gcc 12 warns about its own header in the plain ones.
constexpr __mmask16 kAll = 0xffff;

PYKV_INLINE vf load_f16(const std::byte* from) {
  return vf(_mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}

PYKV_INLINE void store_f16(std::byte* to, vf x) {
  const __m256i halves =
      _mm512_maskz_cvtps_ph(kAll, __m512(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(to, &halves, sizeof halves);
}

PYKV_INLINE float load_one_f16(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return _cvtsh_ss(bits);
}

PYKV_INLINE vf load_i8(const std::byte* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return vf(_mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepi8_epi32(kAll, bytes)));
}

PYKV_INLINE vi load_u8(const std::byte* from) {
  return vi(_mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

PYKV_INLINE vf load_bf16(const std::byte* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return vf(vi(_mm512_maskz_cvtepu16_epi32(kAll, halves)) << 16);
}

// table[low four bits of each word]: one instruction, which is the mask, the offset and the
// conversion of a 4-bit code.
constexpr bool kLookupIsCheap = true;
PYKV_INLINE vf lookup(vi words, const float* table) {
  return vf(_mm512_maskz_permutexvar_ps(kAll, __m512i(words), _mm512_load_ps(table)));
}
