// Products of pairs of 16-bit integers (int16.inl.h) with tiles of them.

// Σ x[row] · tile over `count` words, of `panels` panels: finish(row, vector, sums) takes each vector.
template <int kRows, int kPanels, class Finish>
PYKV_INLINE void multiply_pairs(const float* const* x, const float* tile, std::size_t stride,
                                std::uint32_t first, std::uint32_t count, Finish finish) {
  constexpr int kColumns = kPanels * kVecs;
  vi sums[kRows][kColumns] = {};
  for (std::size_t k = first; k < std::size_t{first} + count; ++k) {
    vi w[kColumns];
    PYKV_UNROLL
    for (int c = 0; c < kColumns; ++c)
      w[c] = load_words(tile + static_cast<std::size_t>(c / kVecs) * stride + k * kPanelWidth +
                        c % kVecs * kLanes);
    PYKV_UNROLL
    for (int r = 0; r < kRows; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, x[r] + k, sizeof pair);
      PYKV_UNROLL
      for (int c = 0; c < kColumns; ++c) sums[r][c] = add_pairs(sums[r][c], w[c], vi{} + pair);
    }
  }
  PYKV_UNROLL
  for (int r = 0; r < kRows; ++r) PYKV_UNROLL
  for (int c = 0; c < kColumns; ++c) finish(r, c, sums[r][c]);
}

// body(rows) with the number of rows as a constant, at most kMaxRows.
template <class Body>
PYKV_INLINE void for_some_rows(std::uint32_t rows, Body body) {
  switch (rows) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    case 5:
      return body(std::integral_constant<int, 5>{});
    case 6:
      return body(std::integral_constant<int, 6>{});
    case 7:
      if constexpr (kMaxRows > 7) return body(std::integral_constant<int, 7>{});
      [[fallthrough]];
    default:
      return body(std::integral_constant<int, kMaxRows>{});
  }
}
