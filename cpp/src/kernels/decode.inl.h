// Codes of the quantized types as float32 (quant.h), in vectors.

constexpr std::uint32_t kBlock = 32;  // elements that share a scale

// What the low four bits of a code stand for, before the scale.
template <DType type>
struct NibbleTable {
  alignas(64) float values[16];
  constexpr NibbleTable() : values{} {
    for (int i = 0; i < 16; ++i)
      values[i] = static_cast<float>(type == DType::iq4_nl ? kIq4NlValues[static_cast<std::size_t>(i)]
                                     : type == DType::q4_0 ? i - 8
                                                           : i);
  }
};
template <DType type>
constexpr NibbleTable<type> kNibbles{};

// The 4-bit code in the low four bits of each word, whatever the others are.
template <DType type>
PYKV_INLINE vf nibble_value(vi words) {
  if constexpr (kLookupIsCheap || type == DType::iq4_nl) return lookup(words, kNibbles<type>.values);
  const vi code = words & 15;
  return to_float(type == DType::q4_0 ? code - 8 : code);
}

// The byte i of each word, of which the lowest `bits` are a signed number.
template <int bits>
PYKV_INLINE vf signed_byte(vi words, int i) {
  return to_float((words << (32 - bits - 8 * i)) >> (32 - bits));
}

// value = d * code, or d * code + m. Products are exact: fused or not gives the same value.
template <DType type>
PYKV_INLINE vf scaled(vf code, vf d, vf m) {
  if constexpr (has_minimum(type)) return multiply_add(d, code, m);
  return d * code;
}
