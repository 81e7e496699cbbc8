// Vector vocabulary, portable: four lanes of GCC vector extensions, which every 64-bit
// target has (SSE2, NEON). No fused multiply-add: its emulation would be slow, and this
// tier then gives the same bits on every architecture.

constexpr int kLanes = 4;
constexpr int kMaxRows = 4;
constexpr int panels_at_once(int rows) { return rows == 1 ? 2 : 1; }

typedef float vf __attribute__((vector_size(16)));
typedef std::int32_t vi __attribute__((vector_size(16)));

PYKV_INLINE vf multiply_add(vf a, vf b, vf c) { return a * b + c; }

// 2^112 rebiases the exponent, exactly, subnormals too; infinity and NaN (made quiet)
// are rebiased by hand.
PYKV_INLINE vf widen_f16(vi bits) {
  const vi rest = (bits & 0x7fff) << 13;
  const vi finite = reinterpret_cast<vi>(reinterpret_cast<vf>(rest) * 0x1p112F);
  const vi quiet = rest > 0x0f800000 ? vi{} + 0x00400000 : vi{};
  const vi magnitude = rest >= 0x0f800000 ? ((rest + 0x70000000) | quiet) : finite;
  return reinterpret_cast<vf>(((bits & 0x8000) << 16) | magnitude);
}

PYKV_INLINE vf load_f16(const std::byte* from) {
  typedef std::uint16_t half4 __attribute__((vector_size(8)));
  half4 bits;
  std::memcpy(&bits, from, sizeof bits);
  return widen_f16(__builtin_convertvector(bits, vi));
}

PYKV_INLINE void store_f16(std::byte* to, vf x) {
  for (int i = 0; i < kLanes; ++i) {
    const std::uint16_t half = f16_from_f32(x[i]);
    std::memcpy(to + 2 * i, &half, sizeof half);
  }
}

PYKV_INLINE float load_one_f16(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return widen_f16(vi{} + bits)[0];
}

PYKV_INLINE vf load_i8(const std::byte* from) {
  typedef std::int8_t char4 __attribute__((vector_size(4)));
  char4 bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, vf);
}

PYKV_INLINE vi load_u8(const std::byte* from) {
  std::int32_t word;
  std::memcpy(&word, from, sizeof word);
  return vi{word, word >> 8, word >> 16, word >> 24} & 255;
}

PYKV_INLINE vf load_bf16(const std::byte* from) {
  typedef std::uint16_t half4 __attribute__((vector_size(8)));
  half4 bits;
  std::memcpy(&bits, from, sizeof bits);
  return reinterpret_cast<vf>(__builtin_convertvector(bits, vi) << 16);
}

// table[low four bits of each word].
constexpr bool kLookupIsCheap = false;
PYKV_INLINE vf lookup(vi words, const float* table) {
  vf found;
  for (int l = 0; l < kLanes; ++l) found[l] = table[words[l] & 15];
  return found;
}
