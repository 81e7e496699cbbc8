// Vector vocabulary, 64-bit ARM: four lanes, fused multiply-add, tables of 64 bytes.

constexpr int kLanes = 4;
constexpr int kMaxRows = 5;
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 2 ? 2 : 1; }

typedef float vf __attribute__((vector_size(16)));
typedef std::int32_t vi __attribute__((vector_size(16)));

PYKV_INLINE vf multiply_add(vf a, vf b, vf c) {
  return vf(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
}

PYKV_INLINE vf load_f16(const std::byte* from) {
  std::uint64_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return vf(vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(bits))));
}

PYKV_INLINE void store_f16(std::byte* to, vf x) {
  const std::uint64_t halves = vget_lane_u64(vreinterpret_u64_f16(vcvt_f16_f32(float32x4_t(x))), 0);
  std::memcpy(to, &halves, sizeof halves);
}

PYKV_INLINE float load_one_f16(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
}

// Four bytes, each in 16 bits.
PYKV_INLINE uint16x4_t load_four_bytes(const std::byte* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return vget_low_u16(vmovl_u8(vcreate_u8(word)));
}

PYKV_INLINE vi load_u8(const std::byte* from) {
  return vi(vreinterpretq_s32_u32(vmovl_u16(load_four_bytes(from))));
}

PYKV_INLINE vf load_i8(const std::byte* from) {
  const vi words = load_u8(from) << 24 >> 24;
  return vf(vcvtq_f32_s32(int32x4_t(words)));
}

PYKV_INLINE vf load_bf16(const std::byte* from) {
  std::uint64_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return vf(vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u64(vcreate_u64(bits)), 16)));
}

// table[low four bits of each word], a table lookup of its four bytes.
constexpr bool kLookupIsCheap = true;
PYKV_INLINE vf lookup(vi words, const float* table) {
  const vi bytes = (words & 15) * 0x04040404 + 0x03020100;
  const uint8x16x4_t entries = {
      vreinterpretq_u8_f32(vld1q_f32(table)), vreinterpretq_u8_f32(vld1q_f32(table + 4)),
      vreinterpretq_u8_f32(vld1q_f32(table + 8)), vreinterpretq_u8_f32(vld1q_f32(table + 12))};
  return vf(vreinterpretq_f32_u8(vqtbl4q_u8(entries, vreinterpretq_u8_s32(int32x4_t(bytes)))));
}
