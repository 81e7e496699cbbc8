// Multiplication with tiles. A tile is panels of words: value(panel, k, lane) at
// panel * stride + k * 16 + lane; float32, or what another Math makes of them.

struct FloatMath {
  PYKV_INLINE static vf broadcast(const float* x) { return splat(*x); }
  PYKV_INLINE static vf add(vf x, vf w, vf sum) { return multiply_add(x, w, sum); }
};

// What multiply() works on: out(row, panel * 16 + lane) += Σ_k x[row][k] * tile(panel, k, lane),
// one multiply-add after the other in ascending k.
struct Product {
  const float* tile;
  std::size_t tile_stride;  // floats from panel to panel
  std::uint32_t panels;
  std::uint32_t count;     // of k
  std::size_t x_offset;    // added to every row pointer
  std::size_t out_stride;  // floats from row to row
};

template <class Math, int kRows, int kPanels>
PYKV_INLINE void multiply_block(const Product& p, const float* const* rows, std::uint32_t panel, float* out) {
  constexpr int kColumns = kPanels * kVecs;
  const float* x[kRows];
  PYKV_UNROLL
  for (int r = 0; r < kRows; ++r) x[r] = rows[r] + p.x_offset;
  vf sums[kRows][kColumns];
  PYKV_UNROLL
  for (int r = 0; r < kRows; ++r) PYKV_UNROLL
  for (int c = 0; c < kColumns; ++c)
    sums[r][c] = load(out + static_cast<std::size_t>(r) * p.out_stride + panel * kPanelWidth + c * kLanes);
  const float* tile = p.tile + panel * p.tile_stride;
  for (std::size_t k = 0; k < p.count; ++k, tile += kPanelWidth) {
    vf w[kColumns];
    PYKV_UNROLL
    for (int c = 0; c < kColumns; ++c)
      w[c] = load(tile + static_cast<std::size_t>(c / kVecs) * p.tile_stride + c % kVecs * kLanes);
    PYKV_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const vf value = Math::broadcast(x[r] + k);
      PYKV_UNROLL
      for (int c = 0; c < kColumns; ++c) sums[r][c] = Math::add(value, w[c], sums[r][c]);
    }
  }
  PYKV_UNROLL
  for (int r = 0; r < kRows; ++r) PYKV_UNROLL
  for (int c = 0; c < kColumns; ++c)
    store(out + static_cast<std::size_t>(r) * p.out_stride + panel * kPanelWidth + c * kLanes, sums[r][c]);
}

template <class Math, int kRows>
void multiply_rows(const Product& p, const float* const* rows, float* out) {
  constexpr int kMost = panels_at_once(kRows);
  std::uint32_t panel = 0;
  for (; panel + kMost <= p.panels; panel += kMost) multiply_block<Math, kRows, kMost>(p, rows, panel, out);
  if constexpr (kMost > 2)
    for (; panel + 2 <= p.panels; panel += 2) multiply_block<Math, kRows, 2>(p, rows, panel, out);
  if constexpr (kMost > 1)
    for (; panel < p.panels; ++panel) multiply_block<Math, kRows, 1>(p, rows, panel, out);
}

// 1 … kMaxRows rows.
template <class Math>
void multiply_few(const Product& p, const float* const* rows, int count, float* out) {
  switch (count) {
    case 1:
      return multiply_rows<Math, 1>(p, rows, out);
    case 2:
      return multiply_rows<Math, 2>(p, rows, out);
    case 3:
      return multiply_rows<Math, 3>(p, rows, out);
    case 4:
      return multiply_rows<Math, 4>(p, rows, out);
    case 5:
      if constexpr (kMaxRows >= 5) return multiply_rows<Math, 5>(p, rows, out);
      break;
    case 6:
      if constexpr (kMaxRows >= 6) return multiply_rows<Math, 6>(p, rows, out);
      break;
    case 7:
      if constexpr (kMaxRows >= 7) return multiply_rows<Math, 7>(p, rows, out);
      break;
    default:
      if constexpr (kMaxRows >= 8) return multiply_rows<Math, 8>(p, rows, out);
      break;
  }
}

template <class Math = FloatMath>
void multiply(const Product& p, const float* const* rows, std::uint32_t count, float* out) {
  for (std::uint32_t r = 0; r < count; r += kMaxRows) {
    const int some = static_cast<int>(count - r < kMaxRows ? count - r : kMaxRows);
    multiply_few<Math>(p, rows + r, some, out + r * p.out_stride);
  }
}
