// Panels of 16 lanes as float32 tiles: groups of cells of K (block_layout.h).

// Vector v of row `row` of a panel's f16 scales, of its words.
PYKV_INLINE vf load_scales(const std::byte* scales, std::size_t row, int v) {
  return load_f16(scales + (row * kPanelWidth + v * kLanes) * 2);
}
PYKV_INLINE vi load_word_row(const std::byte* values, std::size_t row, int v) {
  return load_words(values + (row * kPanelWidth + v * kLanes) * 4);
}

// Codes of elements 16 * half + 4 * w … + 3 of a block, made of its word row w: one in each
// byte of the words (4-bit codes: in its low half).
template <DType type>
PYKV_INLINE vi operand(vi words, vi fifth, int w, int half) {
  if constexpr (type == DType::q8_0) return words ^ static_cast<std::int32_t>(0x80808080);  // less 128
  const vi nibbles = words >> (4 * half);
  if constexpr (!has_fifth_bits(type)) return nibbles;
  const vi codes = (nibbles & 0x0f0f0f0f) | ((fifth >> (4 * half + w)) & 0x01010101) << 4;
  return type == DType::q5_0 ? codes ^ 0x10101010 : codes;  // now a signed number of five bits
}

// Code i of an operand.
template <DType type>
PYKV_INLINE vf operand_code(vi codes, int i) {
  if constexpr (type == DType::q8_0 || type == DType::q5_1) return signed_byte<8>(codes, i);
  if constexpr (type == DType::q5_0) return signed_byte<5>(codes, i);
  return nibble_value<type>(codes >> (8 * i));
}

template <DType type>
void decode_blocks(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  constexpr std::size_t kScaleRows = has_minimum(type) ? 2 : 1;
  constexpr int kWords = code_bytes(type) / 4;
  constexpr int kHalves = 8 / kWords;
  for (std::size_t block = k0 / kBlock; block < (k0 + count) / kBlock;
       ++block, tile += kBlock * kPanelWidth) {
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const vf d = load_scales(panel.scales, block * kScaleRows, v);
      const vf m = has_minimum(type) ? load_scales(panel.scales, block * kScaleRows + 1, v) : vf{};
      const vi fifth = has_fifth_bits(type) ? load_word_row(panel.fifth, block, v) : vi{};
      PYKV_UNROLL
      for (int w = 0; w < kWords; ++w) {
        const vi words = load_word_row(panel.values, block * kWords + static_cast<std::size_t>(w), v);
        PYKV_UNROLL
        for (int half = 0; half < kHalves; ++half) {
          const vi codes = operand<type>(words, fifth, w, half);
          float* const to = tile + static_cast<std::size_t>(16 * half + 4 * w) * kPanelWidth + v * kLanes;
          PYKV_UNROLL
          for (int i = 0; i < 4; ++i)
            store(to + i * kPanelWidth, scaled<type>(operand_code<type>(codes, i), d, m));
        }
      }
    }
  }
}

PYKV_INLINE void decode_plain(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  const bool half = panel.type == DType::f16;
  const std::size_t begin = std::size_t{k0} * kPanelWidth;
  const std::size_t length = std::size_t{count} * kPanelWidth;
  if (half) {
    for (std::size_t at = 0; at < length; at += kLanes)
      store(tile + at, load_f16(panel.values + (begin + at) * 2));
  } else {
    for (std::size_t at = 0; at < length; at += kLanes)
      store(tile + at, load_f32(panel.values + (begin + at) * 4));
  }
}

// Words of two neighbouring elements of a lane.
PYKV_INLINE void decode_bf16(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  for (std::size_t pair = k0 / 2; pair < (k0 + count) / 2; ++pair, tile += 2 * kPanelWidth) {
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const vi words = load_word_row(panel.values, pair, v);
      store(tile + v * kLanes, as_float(words << 16));
      store(tile + kPanelWidth + v * kLanes, as_float(words & static_cast<std::int32_t>(0xffff0000)));
    }
  }
}

// Decodes elements [k0, k0 + count) of a group of K: multiples of 32, plain types of 2.
void decode_panel(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  switch (panel.type) {
    case DType::f32:
    case DType::f16:
      return decode_plain(panel, k0, count, tile);
    case DType::bf16:
      return decode_bf16(panel, k0, count, tile);
    case DType::q8_0:
      return decode_blocks<DType::q8_0>(panel, k0, count, tile);
    case DType::q4_0:
      return decode_blocks<DType::q4_0>(panel, k0, count, tile);
    case DType::q4_1:
      return decode_blocks<DType::q4_1>(panel, k0, count, tile);
    case DType::q5_0:
      return decode_blocks<DType::q5_0>(panel, k0, count, tile);
    case DType::q5_1:
      return decode_blocks<DType::q5_1>(panel, k0, count, tile);
    case DType::iq4_nl:
      return decode_blocks<DType::iq4_nl>(panel, k0, count, tile);
    default:
      return;  // K types are for weights
  }
}
