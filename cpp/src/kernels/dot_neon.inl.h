// 32 integers of each lane, signed bytes in words of four neighbours, as dot products take
// them.

constexpr int kBytesBias = 0;

struct Nibbles {
  vi q[8];
  PYKV_INLINE explicit Nibbles(const vi (&words)[4]) {
    PYKV_UNROLL
    for (int j = 0; j < 4; ++j) {
      q[j] = words[j] & 0x0f0f0f0f;
      q[j + 4] = (words[j] >> 4) & 0x0f0f0f0f;
    }
  }
};

struct Bytes {
  vi q[8];
  PYKV_INLINE explicit Bytes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) q[j] = words[j] ^ static_cast<std::int32_t>(0x80808080);
  }
};

// sums[i] += Σ weight * a[i * 32 …], exactly.
template <int kRows, class Integers>
PYKV_INLINE void add_dots(const Integers& weight, const std::int8_t* a, vi* sums) {
  PYKV_UNROLL
  for (int j = 0; j < 8; ++j) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(load_int(a + 32 * i + 4 * j)));
    sums[i] = vi(vdotq_s32(int32x4_t(sums[i]), vreinterpretq_s8_s32(int32x4_t(weight.q[j])), four));
  }
}
