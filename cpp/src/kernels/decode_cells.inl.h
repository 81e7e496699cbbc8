// Cells of V (block_layout.h) as float32 panels: 16 elements of each cell, cell by cell.

// Bit l of `bits` as 16 in lane l: the fifth bit of a code.
PYKV_INLINE vi fifth_bits(std::uint32_t bits) {
  vi each;
  for (int l = 0; l < kLanes; ++l) each[l] = 1 << l;
  return ((each & static_cast<std::int32_t>(bits)) != 0) & 16;
}

// Codes [16 * half + first, …) of a block, a vector of them.
template <DType type>
PYKV_INLINE vf cell_codes(const std::byte* codes, const std::byte* fifth, int half, int first) {
  if constexpr (type == DType::q8_0) return load_i8(codes + half * 16 + first);
  const vi nibbles = load_u8(codes + first) >> (4 * half);
  if constexpr (!has_fifth_bits(type)) return nibble_value<type>(nibbles);
  std::uint32_t bits;
  std::memcpy(&bits, fifth, sizeof bits);
  const vi code = (nibbles & 15) | fifth_bits(bits >> (16 * half + first));
  return to_float(type == DType::q5_0 ? code - 16 : code);
}

// `count` values from row `row` on of a tile: value(i, v) of the i-th; those that share an even
// row and the next one together.
template <class Tile, class Value>
PYKV_INLINE void put_rows(Tile tile, std::uint32_t row, std::uint32_t count, Value value) {
  std::uint32_t i = 0;
  const auto one = [&] {
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) tile.put(row + i, v, value(i, v));
    ++i;
  };
  if (row % 2 != 0 && count > 0) one();
  for (; i + 2 <= count; i += 2) PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) tile.put(row + i, v, value(i, v), value(i + 1, v));
  if (i < count) one();
}

// Elements [dim, dim + 16) of `count` cells from `cell` on; quantized types.
template <DType type, class Tile>
void decode_cell_blocks(const std::byte* v_tile, const TileLayout& layout, std::uint32_t dim,
                        std::uint32_t cell, std::uint32_t count, Tile tile, std::uint32_t row) {
  constexpr std::size_t kScales = has_minimum(type) ? 4 : 2;  // bytes
  const std::size_t blocks = layout.dim / kBlock;
  const std::size_t first = cell * blocks + dim / kBlock;
  const std::byte* scales = v_tile + first * kScales;
  const std::byte* fifth = v_tile + layout.fifth_offset + first * 4;
  const std::byte* codes = v_tile + layout.values_offset + first * code_bytes(type);
  const int half = static_cast<int>(dim / kPanelWidth % 2);
  put_rows(tile, row, count, [&](std::size_t c, int v) {
    const std::byte* const scale = scales + c * blocks * kScales;
    const vf d = splat(load_one_f16(scale));
    const vf m = has_minimum(type) ? splat(load_one_f16(scale + 2)) : vf{};
    const std::size_t block = c * blocks;
    return scaled<type>(
        cell_codes<type>(codes + block * code_bytes(type), fifth + block * 4, half, v * kLanes), d, m);
  });
}

template <DType type>
PYKV_INLINE vf load_plain(const std::byte* from) {
  if constexpr (type == DType::f32) return load_f32(from);
  if constexpr (type == DType::f16) return load_f16(from);
  return load_bf16(from);
}

template <DType type, class Tile>
void decode_cell_values(const std::byte* v_tile, const TileLayout& layout, std::uint32_t dim,
                        std::uint32_t cell, std::uint32_t count, Tile tile, std::uint32_t row) {
  constexpr std::size_t kBytes = type == DType::f32 ? 4 : 2;
  const std::size_t stride = layout.dim * kBytes;
  const std::uint32_t width = layout.dim - dim < kPanelWidth ? layout.dim - dim : kPanelWidth;
  const std::byte* const values = v_tile + layout.values_offset + cell * stride + dim * kBytes;
  if (width == kPanelWidth)
    return put_rows(tile, row, count, [&](std::size_t c, int v) {
      return load_plain<type>(values + c * stride + static_cast<std::size_t>(v * kLanes) * kBytes);
    });
  put_rows(tile, row, count, [&](std::size_t c, int v) {
    std::byte padded[kPanelWidth * kBytes] = {};
    std::memcpy(padded, values + c * stride, width * kBytes);
    return load_plain<type>(padded + static_cast<std::size_t>(v * kLanes) * kBytes);
  });
}

// Elements [dim, dim + 16) of V of `count` cells from `cell` on, in rows from `row` on; elements
// past v_dim are 0.
template <class Tile>
void decode_cell_rows(const std::byte* v_tile, const TileLayout& layout, std::uint32_t dim,
                      std::uint32_t cell, std::uint32_t count, Tile tile, std::uint32_t row) {
  switch (layout.type) {
    case DType::f32:
      return decode_cell_values<DType::f32>(v_tile, layout, dim, cell, count, tile, row);
    case DType::f16:
      return decode_cell_values<DType::f16>(v_tile, layout, dim, cell, count, tile, row);
    case DType::bf16:
      return decode_cell_values<DType::bf16>(v_tile, layout, dim, cell, count, tile, row);
    case DType::q8_0:
      return decode_cell_blocks<DType::q8_0>(v_tile, layout, dim, cell, count, tile, row);
    case DType::q4_0:
      return decode_cell_blocks<DType::q4_0>(v_tile, layout, dim, cell, count, tile, row);
    case DType::q4_1:
      return decode_cell_blocks<DType::q4_1>(v_tile, layout, dim, cell, count, tile, row);
    case DType::q5_0:
      return decode_cell_blocks<DType::q5_0>(v_tile, layout, dim, cell, count, tile, row);
    case DType::q5_1:
      return decode_cell_blocks<DType::q5_1>(v_tile, layout, dim, cell, count, tile, row);
    case DType::iq4_nl:
      return decode_cell_blocks<DType::iq4_nl>(v_tile, layout, dim, cell, count, tile, row);
    default:
      return;  // K types are for weights
  }
}

void decode_cells(const std::byte* v_tile, const TileLayout& layout, std::uint32_t dim, std::uint32_t cell,
                  std::uint32_t count, float* tile) {
  decode_cell_rows(v_tile, layout, dim, cell, count, FloatTile{tile}, 0);
}
