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

// Elements [dim, dim + 16) of `count` cells from `cell` on; quantized types.
template <DType type>
void decode_cell_blocks(const std::byte* v_tile, const TileLayout& layout, std::uint32_t dim,
                        std::uint32_t cell, std::uint32_t count, float* tile) {
  constexpr std::size_t kScales = has_minimum(type) ? 4 : 2;  // bytes
  const std::size_t blocks = layout.dim / kBlock;
  const std::size_t first = cell * blocks + dim / kBlock;
  const std::byte* scales = v_tile + first * kScales;
  const std::byte* fifth = v_tile + layout.fifth_offset + first * 4;
  const std::byte* codes = v_tile + layout.values_offset + first * code_bytes(type);
  const int half = static_cast<int>(dim / kPanelWidth % 2);
  for (std::uint32_t c = 0; c < count; ++c) {
    const vf d = splat(load_one_f16(scales));
    const vf m = has_minimum(type) ? splat(load_one_f16(scales + 2)) : vf{};
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v)
      store(tile + v * kLanes, scaled<type>(cell_codes<type>(codes, fifth, half, v * kLanes), d, m));
    tile += kPanelWidth;
    scales += blocks * kScales;
    fifth += blocks * 4;
    codes += blocks * code_bytes(type);
  }
}

template <DType type>
PYKV_INLINE vf load_plain(const std::byte* from) {
  if constexpr (type == DType::f32) return load_f32(from);
  if constexpr (type == DType::f16) return load_f16(from);
  return load_bf16(from);
}

template <DType type>
void decode_cell_values(const std::byte* v_tile, const TileLayout& layout, std::uint32_t dim,
                        std::uint32_t cell, std::uint32_t count, float* tile) {
  constexpr std::size_t kBytes = type == DType::f32 ? 4 : 2;
  const std::size_t stride = layout.dim * kBytes;
  const std::uint32_t width = layout.dim - dim < kPanelWidth ? layout.dim - dim : kPanelWidth;
  const std::byte* values = v_tile + layout.values_offset + cell * stride + dim * kBytes;
  for (std::uint32_t c = 0; c < count; ++c, tile += kPanelWidth, values += stride) {
    std::byte padded[kPanelWidth * kBytes] = {};
    const std::byte* from = values;
    if (width < kPanelWidth) {
      std::memcpy(padded, values, width * kBytes);
      from = padded;
    }
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v)
      store(tile + v * kLanes, load_plain<type>(from + static_cast<std::size_t>(v * kLanes) * kBytes));
  }
}

// Elements [dim, dim + 16) of V of `count` cells from `cell` on; elements past v_dim are 0.
void decode_cells(const std::byte* v_tile, const TileLayout& layout, std::uint32_t dim, std::uint32_t cell,
                  std::uint32_t count, float* tile) {
  switch (layout.type) {
    case DType::f32:
      return decode_cell_values<DType::f32>(v_tile, layout, dim, cell, count, tile);
    case DType::f16:
      return decode_cell_values<DType::f16>(v_tile, layout, dim, cell, count, tile);
    case DType::bf16:
      return decode_cell_values<DType::bf16>(v_tile, layout, dim, cell, count, tile);
    case DType::q8_0:
      return decode_cell_blocks<DType::q8_0>(v_tile, layout, dim, cell, count, tile);
    case DType::q4_0:
      return decode_cell_blocks<DType::q4_0>(v_tile, layout, dim, cell, count, tile);
    case DType::q4_1:
      return decode_cell_blocks<DType::q4_1>(v_tile, layout, dim, cell, count, tile);
    case DType::q5_0:
      return decode_cell_blocks<DType::q5_0>(v_tile, layout, dim, cell, count, tile);
    case DType::q5_1:
      return decode_cell_blocks<DType::q5_1>(v_tile, layout, dim, cell, count, tile);
    case DType::iq4_nl:
      return decode_cell_blocks<DType::iq4_nl>(v_tile, layout, dim, cell, count, tile);
    default:
      return;  // K types are for weights
  }
}
