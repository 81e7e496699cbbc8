// 32 integers of each lane as floats: products and their sum, at most 32 * 128 * 127, are
// exact, and 32-bit integer products would be slower where this tier is used.
struct Integers32 {
  vf values[32];
  Integers32() = default;

  // The unsigned bytes of words of four neighbours, less `bias`.
  PYKV_INLINE Integers32(const vi (&words)[8], int bias) {
    for (int j = 0; j < 8; ++j)
      for (int i = 0; i < 4; ++i) values[4 * j + i] = to_float(((words[j] >> (8 * i)) & 255) - bias);
  }
};

template <int kMost>
struct Codes : Integers32 {
  Codes() = default;
  PYKV_INLINE explicit Codes(const vi (&words)[8]) : Integers32(words, 0) {}
};

constexpr int kBytesBias = 0;
struct Bytes : Integers32 {
  Bytes() = default;
  PYKV_INLINE explicit Bytes(const vi (&words)[8]) : Integers32(words, kByteBias) {}
};

// sums[v][i] += Σ weights[v] * a[i * 32 …] over words [kFirst, kLast), exactly.
template <int kRows, int kFirst = 0, int kLast = 8, class Integers, int kWide>
PYKV_INLINE void add_dots(const Integers (&weights)[kWide], const std::int8_t* a, vi (*sums)[kRows]) {
  for (int v = 0; v < kWide; ++v)
    for (int i = 0; i < kRows; ++i) {
      vf sum{};
      for (int k = 4 * kFirst; k < 4 * kLast; ++k)
        sum += weights[v].values[k] * static_cast<float>(a[32 * i + k]);
      sums[v][i] = Sum::apply(sums[v][i], __builtin_convertvector(sum, vi));
    }
}
