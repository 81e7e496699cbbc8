// Panels of the K types (k_panel.h) as float32 tiles.

// The small integers of group `group`, vector v.
template <DType type>
PYKV_INLINE vf k_small(const std::byte* small, std::size_t group, int v) {
  if constexpr (type == DType::q2_k)
    return nibble_value<DType::q4_1>(load_word_row(small, group / 8, v) >> static_cast<int>(group % 8 * 4));
  return load_i8(small + group * kPanelWidth + v * kLanes);
}

// The codes of 32 elements, vector v.
template <DType type>
struct KCodes {
  static constexpr quant::KFormat kFormat = quant::k_format(type);
  static constexpr int kLow = k_low_bits(type);
  static constexpr int kHigh = kFormat.bits - kLow;
  vi rows[kFormat.bits];

  PYKV_INLINE KCodes(const std::byte* unit, int v) {
    PYKV_UNROLL
    for (int row = 0; row < kFormat.bits; ++row)
      rows[row] = load_word_row(unit, static_cast<std::size_t>(row), v);
  }

  // Bytes 4 j … 4 j + 3, of which the low kFormat.bits are the code less kFormat.zero; of
  // four bits, only the low ones of a byte count.
  PYKV_INLINE vi operand(int j) const {
    const vi low = rows[j % kLow] >> (j / kLow * kLow);
    if constexpr (type == DType::q4_k) return low;
    vi codes = low & (kLow == 4 ? 0x0f0f0f0f : 0x03030303);
    if constexpr (kHigh > 0)
      codes |= ((rows[kLow + j % kHigh] >> (j / kHigh * kHigh)) & (kHigh == 1 ? 0x01010101 : 0x03030303))
               << kLow;
    return codes ^ (kFormat.zero * 0x01010101);  // zero is the highest bit: now a signed number
  }
};

template <DType type>
PYKV_INLINE vf k_code(vi operand, int i) {
  constexpr quant::KFormat format = quant::k_format(type);
  if constexpr (type == DType::q4_k) return nibble_value<DType::q4_1>(operand >> (8 * i));
  return signed_byte < format.zero == 0 ? 8 : format.bits > (operand, i);
}

template <DType type>
void decode_k(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  constexpr quant::KFormat format = quant::k_format(type);
  constexpr KScalePlace place = k_scale_place(type);
  constexpr std::size_t kUnitGroups = format.groups / 8;
  constexpr int kGroupWords = static_cast<int>(8 / kUnitGroups);
  for (std::size_t unit = k0 / kKUnit; unit < (k0 + count) / kKUnit; ++unit, tile += kKUnit * kPanelWidth) {
    const std::byte* const scales = panel.scales + unit / 8 * place.bytes;
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const KCodes<type> codes(panel.values + unit * k_unit_bytes(type), v);
      const vf d = load_scales(scales, 0, v);
      const vf dmin = format.minimum ? load_scales(scales, 1, v) : vf{};
      PYKV_UNROLL
      for (int j = 0; j < 8; ++j) {
        const std::size_t group = unit % 8 * kUnitGroups + static_cast<std::size_t>(j / kGroupWords);
        const vf scale = d * k_small<type>(scales + place.scales, group, v);
        const vi operand = codes.operand(j);
        float* const to = tile + static_cast<std::size_t>(4 * j) * kPanelWidth + v * kLanes;
        PYKV_UNROLL
        for (int i = 0; i < 4; ++i) {
          const vf code = k_code<type>(operand, i);
          if constexpr (format.minimum) {
            const vf minimum = dmin * k_small<type>(scales + place.minimums, group, v);
            store(to + i * kPanelWidth, multiply_add(scale, code, -minimum));
          } else {
            store(to + i * kPanelWidth, scale * code);
          }
        }
      }
    }
  }
}
