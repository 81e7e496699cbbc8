// 32 integers of each lane, unsigned bytes of at most kMost in words of four neighbours, as dot
// products take them. A kind whose stored bytes are biased says by how much, and add_dots
// leaves that to its caller.
template <int kMost>
struct Codes {
  vi q[8];
  Codes() = default;
  PYKV_INLINE explicit Codes(const vi (&words)[8]) {
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) q[j] = words[j];
  }
};

constexpr int kBytesBias = kByteBias;
using Bytes = Codes<255>;

// sum + weight · the four bytes at `a` in each word. gcc would load those with an instruction of its
// own, and the loop would wait for instructions, not for dot products.
PYKV_INLINE vi add_dot(vi sum, vi weight, const std::int8_t* a) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(weight), "m"(*reinterpret_cast<const std::int32_t*>(a)));
  return sum;
}

// sums[v][i] += Σ weights[v] * a[i * 32 …] over words [kFirst, kLast), exactly.
template <int kRows, int kFirst = 0, int kLast = 8, int kWide, int kMost>
PYKV_INLINE void add_dots(const Codes<kMost> (&weights)[kWide], const std::int8_t* a, vi (*sums)[kRows]) {
  PYKV_UNROLL
  for (int j = kFirst; j < kLast; ++j) PYKV_UNROLL
  for (int v = 0; v < kWide; ++v) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) sums[v][i] = add_dot(sums[v][i], weights[v].q[j], a + 32 * i + 4 * j);
}
