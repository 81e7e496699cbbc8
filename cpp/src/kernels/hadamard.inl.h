// The orthonormal Walsh-Hadamard transform in Sylvester's order: out[i] = Σ_j x[j] *
// (-1)^popcount(i & j) / sqrt(n). It is its own inverse.

// Lane l gets lane l ^ distance.
template <int distance, int... lane>
PYKV_INLINE vf swap_lanes(vf x, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(x, x, (lane ^ distance)...);
}

template <int distance, int... lane>
PYKV_INLINE vf lane_signs(std::integer_sequence<int, lane...>) {
  return vf{((lane & distance) != 0 ? -1.0F : 1.0F)...};
}

// Butterflies inside a vector: pairs at distance 1, 2, … kLanes / 2.
template <int distance = 1>
PYKV_INLINE vf butterfly_lanes(vf x) {
  if constexpr (distance < kLanes) {
    constexpr std::make_integer_sequence<int, kLanes> kEach;
    return butterfly_lanes<2 * distance>(swap_lanes<distance>(x, kEach) + x * lane_signs<distance>(kEach));
  } else {
    return x;
  }
}

// Transforms the n elements of `x`, a power of two of at least 16, in place.
PYKV_INLINE void hadamard_block(float* x, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; i += kLanes) store(x + i, butterfly_lanes(load(x + i)));
  for (std::uint32_t distance = kLanes; distance < n; distance *= 2) {
    for (std::uint32_t first = 0; first < n; first += 2 * distance) {
      for (std::uint32_t i = first; i < first + distance; i += kLanes) {
        const vf a = load(x + i);
        const vf b = load(x + i + distance);
        store(x + i, a + b);
        store(x + i + distance, a - b);
      }
    }
  }
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(n));
  for (std::uint32_t i = 0; i < n; i += kLanes) store(x + i, load(x + i) * scale);
}

void hadamard(float* x, std::uint32_t n, std::uint32_t blocks) {
  for (std::uint32_t b = 0; b < blocks; ++b) hadamard_block(x + std::size_t{b} * n, n);
}
