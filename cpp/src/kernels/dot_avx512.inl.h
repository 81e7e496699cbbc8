// 32 integers of each lane, unsigned bytes of at most kMost in words of four neighbours, as dot
// products take them. A kind whose stored bytes are biased says by how much, and add_dots
// leaves that to its caller.
template <int kMost>
struct Codes {
  vi q[8];
  PYKV_INLINE explicit Codes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) q[j] = words[j];
  }
};

constexpr int kBytesBias = kByteBias;
using Bytes = Codes<255>;

// sums[i] += Σ weight * a[i * 32 …] over words [kFirst, kLast), exactly.
template <int kRows, int kFirst = 0, int kLast = 8, int kMost>
PYKV_INLINE void add_dots(const Codes<kMost>& weight, const std::int8_t* a, vi* sums) {
  PYKV_UNROLL
  for (int j = kFirst; j < kLast; ++j) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const vi four = vi{} + load_int(a + 32 * i + 4 * j);
    sums[i] = vi(_mm512_dpbusd_epi32(__m512i(sums[i]), __m512i(weight.q[j]), __m512i(four)));
  }
}
