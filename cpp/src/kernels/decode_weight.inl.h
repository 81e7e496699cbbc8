// Panels of weights (panel.h) as float32 tiles.

// Vector v of scale row `row` of a panel.
PYKV_INLINE vf load_scales(const std::byte* scales, std::size_t row, int v) {
  return load_f16(scales + (row * kPanelWidth + v * kLanes) * 2);
}

// Vector v of word row `row`.
PYKV_INLINE vi load_word_row(const std::byte* values, std::size_t row, int v) {
  return load_words(values + (row * kPanelWidth + v * kLanes) * 4);
}

PYKV_INLINE void decode_weight_q8_0(const Panel& panel, std::size_t block, float* tile) {
  PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    const vf d = load_scales(panel.scales, block, v);
    for (std::size_t word = 0; word < kBlock / 4; ++word) {
      const vi words = load_word_row(panel.values, block * (kBlock / 4) + word, v);
      float* const to = tile + word * 4 * kPanelWidth + v * kLanes;
      PYKV_UNROLL
      for (int i = 0; i < 4; ++i)
        store(to + i * kPanelWidth, d * to_float(((words >> (8 * i)) & 255) - kByteBias));
    }
  }
}

// Products d * nibble are exact, so that fused or not gives the same value.
PYKV_INLINE void decode_weight_q4_1(const Panel& panel, std::size_t block, float* tile) {
  PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    const vf d = load_scales(panel.scales, block * 2, v);
    const vf m = load_scales(panel.scales, block * 2 + 1, v);
    for (std::size_t word = 0; word < kBlock / 8; ++word) {
      const vi words = load_word_row(panel.values, block * (kBlock / 8) + word, v);
      float* const to = tile + word * 4 * kPanelWidth + v * kLanes;
      PYKV_UNROLL
      for (int i = 0; i < 4; ++i) {
        store(to + i * kPanelWidth, multiply_add(d, nibble(words, 2 * i), m));
        store(to + (i + kBlock / 2) * kPanelWidth, multiply_add(d, nibble(words, 2 * i + 1), m));
      }
    }
  }
}

// Decodes elements [k0, k0 + count) of a panel. Quantized types: multiples of 32.
void decode_weight(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  const std::size_t begin = k0 / kBlock;
  const std::size_t end = (k0 + count) / kBlock;
  switch (panel.type) {
    case DType::q8_0:
      for (std::size_t b = begin; b < end; ++b)
        decode_weight_q8_0(panel, b, tile + (b - begin) * kBlock * kPanelWidth);
      return;
    case DType::q4_1:
      for (std::size_t b = begin; b < end; ++b)
        decode_weight_q4_1(panel, b, tile + (b - begin) * kBlock * kPanelWidth);
      return;
    default:
      return decode_plain(panel, k0, count, tile);
  }
}
