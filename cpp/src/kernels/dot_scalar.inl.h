// 32 integers of each lane as floats: products and their sum, at most 32 * 128 * 127, are
// exact, and 32-bit integer products would be slower where this tier is used.
struct Integers32 {
  vf values[32];
};

struct Nibbles : Integers32 {
  PYKV_INLINE explicit Nibbles(const vi (&words)[4]) {
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 4; ++i) {
        values[4 * j + i] = to_float((words[j] >> (8 * i)) & 15);
        values[4 * j + i + 16] = to_float((words[j] >> (8 * i + 4)) & 15);
      }
  }
};

constexpr int kBytesBias = 0;
struct Bytes : Integers32 {
  PYKV_INLINE explicit Bytes(const vi (&words)[8]) {
    for (int j = 0; j < 8; ++j)
      for (int i = 0; i < 4; ++i)
        values[4 * j + i] = __builtin_convertvector(((words[j] >> (8 * i)) & 255) - kByteBias, vf);
  }
};

// sums[i] += Σ weight * a[i * 32 …], exactly.
template <int kRows>
PYKV_INLINE void add_dots(const Integers32& weight, const std::int8_t* a, vi* sums) {
  for (int i = 0; i < kRows; ++i) {
    vf sum{};
    for (int k = 0; k < 32; ++k) sum += weight.values[k] * static_cast<float>(a[32 * i + k]);
    sums[i] += __builtin_convertvector(sum, vi);
  }
}
