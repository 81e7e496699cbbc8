// 32 integers of each lane, signed bytes in words of four neighbours, as dot products take
// them.

constexpr int kBytesBias = 0;

// 0 … kMost, at most 127.
template <int kMost>
struct Codes {
  vi q[8];
  Codes() = default;
  PYKV_INLINE explicit Codes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) q[j] = words[j];
  }
};

struct Bytes {
  vi q[8];
  Bytes() = default;
  PYKV_INLINE explicit Bytes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) q[j] = words[j] ^ static_cast<std::int32_t>(0x80808080);
  }
};

// sums[v][i] += Σ weights[v] * a[i * 32 …] over words [kFirst, kLast), exactly.
template <int kRows, int kFirst = 0, int kLast = 8, int kWide, class Integers>
PYKV_INLINE void add_dots(const Integers (&weights)[kWide], const std::int8_t* a, vi (*sums)[kRows]) {
  PYKV_UNROLL
  for (int j = kFirst; j < kLast; ++j) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(load_int(a + 32 * i + 4 * j)));
    PYKV_UNROLL
    for (int v = 0; v < kWide; ++v)
      sums[v][i] =
          vi(vdotq_s32(int32x4_t(sums[v][i]), vreinterpretq_s8_s32(int32x4_t(weights[v].q[j])), four));
  }
}
