// Panels of 16 lanes as tiles: groups of cells of K (block_layout.h).

// A tile of float32: row r of a panel is its element r. Decoders give two neighbouring rows
// at a time, the first one even.
struct FloatTile {
  float* rows;

  PYKV_INLINE void put(std::size_t row, int v, vf x) const {
    store(rows + row * kPanelWidth + v * kLanes, x);
  }
  PYKV_INLINE void put(std::size_t row, int v, vf first, vf second) const {
    put(row, v, first);
    put(row + 1, v, second);
  }
  // Two elements of each lane, as bf16 in the halves of its word.
  PYKV_INLINE void put_bf16(std::size_t row, int v, vi words) const {
    put(row, v, as_float(words << 16), as_float(words & static_cast<std::int32_t>(0xffff0000)));
  }
};

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

template <DType type, class Tile>
void decode_blocks(const Panel& panel, std::uint32_t k0, std::uint32_t count, Tile tile) {
  constexpr std::size_t kScaleRows = has_minimum(type) ? 2 : 1;
  constexpr int kWords = code_bytes(type) / 4;
  constexpr int kHalves = 8 / kWords;
  std::size_t row = 0;
  for (std::size_t block = k0 / kBlock; block < (k0 + count) / kBlock; ++block, row += kBlock) {
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
          const auto value = [&](int i) { return scaled<type>(operand_code<type>(codes, i), d, m); };
          const std::size_t to = row + static_cast<std::size_t>(16 * half + 4 * w);
          tile.put(to, v, value(0), value(1));
          tile.put(to + 2, v, value(2), value(3));
        }
      }
    }
  }
}

template <DType type, class Tile>
PYKV_INLINE void decode_plain(const Panel& panel, std::uint32_t k0, std::uint32_t count, Tile tile) {
  const auto value = [&](std::size_t row, int v) {
    const std::size_t at = (k0 + row) * kPanelWidth + static_cast<std::size_t>(v * kLanes);
    return type == DType::f16 ? load_f16(panel.values + at * 2) : load_f32(panel.values + at * 4);
  };
  std::size_t row = 0;
  for (; row + 2 <= count; row += 2) PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) tile.put(row, v, value(row, v), value(row + 1, v));
  if (row == count) return;
  PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) tile.put(row, v, value(row, v));
}

// Words of two neighbouring elements of a lane.
template <class Tile>
PYKV_INLINE void decode_bf16(const Panel& panel, std::uint32_t k0, std::uint32_t count, Tile tile) {
  for (std::size_t row = 0; row < count; row += 2) PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) tile.put_bf16(row, v, load_word_row(panel.values, (k0 + row) / 2, v));
}

// Elements [k0, k0 + count) of a group of K: multiples of 32; bf16 of 2, f16 and f32 any.
template <class Tile>
void decode_group(const Panel& panel, std::uint32_t k0, std::uint32_t count, Tile tile) {
  switch (panel.type) {
    case DType::f32:
      return decode_plain<DType::f32>(panel, k0, count, tile);
    case DType::f16:
      return decode_plain<DType::f16>(panel, k0, count, tile);
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

void decode_panel(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  decode_group(panel, k0, count, FloatTile{tile});
}
