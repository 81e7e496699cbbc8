// 32 integers of each lane, unsigned bytes in words of four neighbours, as dot products take
// them. A kind whose stored bytes are biased says by how much, and add_dots leaves that to
// its caller.
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

constexpr int kBytesBias = kByteBias;
struct Bytes {
  vi q[8];
  PYKV_INLINE explicit Bytes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) q[j] = words[j];
  }
};

// sums[i] += Σ weight * a[i * 32 …], exactly.
template <int kRows, class Integers>
PYKV_INLINE void add_dots(const Integers& weight, const std::int8_t* a, vi* sums) {
  PYKV_UNROLL
  for (int j = 0; j < 8; ++j) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const vi four = vi{} + load_int(a + 32 * i + 4 * j);
    sums[i] = vi(_mm512_dpbusd_epi32(__m512i(sums[i]), __m512i(weight.q[j]), __m512i(four)));
  }
}
