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
    return butterfly_lanes<2 * distance>(
        multiply_add(x, lane_signs<distance>(kEach), swap_lanes<distance>(x, kEach)));
  } else {
    return x;
  }
}

// n elements that registers hold, then times `scale`.
template <std::uint32_t n>
PYKV_INLINE void butterfly(float* x, float scale) {
  constexpr std::uint32_t kVectors = n / kLanes;
  vf v[kVectors];
  PYKV_UNROLL
  for (std::uint32_t i = 0; i < kVectors; ++i) v[i] = butterfly_lanes(load(x + i * kLanes));
  PYKV_UNROLL
  for (std::uint32_t distance = 1; distance < kVectors; distance *= 2) PYKV_UNROLL
  for (std::uint32_t i = 0; i < kVectors; ++i) {
    if ((i & distance) != 0) continue;
    const vf a = v[i], b = v[i + distance];
    v[i] = a + b;
    v[i + distance] = a - b;
  }
  PYKV_UNROLL
  for (std::uint32_t i = 0; i < kVectors; ++i) store(x + i * kLanes, v[i] * scale);
}

// Transforms the n elements of `x`, a power of two of at least 16, in place.
PYKV_INLINE void hadamard_block(float* x, std::uint32_t n) {
  constexpr std::uint32_t kHeld = 64;
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(n));
  if (n == 16) return butterfly<16>(x, scale);
  if (n == 32) return butterfly<32>(x, scale);
  if (n == kHeld) return butterfly<kHeld>(x, scale);
  for (std::uint32_t i = 0; i < n; i += kHeld) butterfly<kHeld>(x + i, 1.0F);
  for (std::uint32_t distance = kHeld; distance < n; distance *= 2) {
    const float factor = 2 * distance == n ? scale : 1.0F;
    for (std::uint32_t first = 0; first < n; first += 2 * distance) {
      for (std::uint32_t i = first; i < first + distance; i += kLanes) {
        const vf a = load(x + i);
        const vf b = load(x + i + distance);
        store(x + i, (a + b) * factor);
        store(x + i + distance, (a - b) * factor);
      }
    }
  }
}

void hadamard(float* x, std::uint32_t n, std::uint32_t blocks) {
  for (std::uint32_t b = 0; b < blocks; ++b) hadamard_block(x + std::size_t{b} * n, n);
}
