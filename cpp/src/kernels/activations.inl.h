// Activations as 8-bit integers (activations.h).

constexpr int kBlockVecs = static_cast<int>(kActivationBlock) / kLanes;

// Of each lane the largest |x| of a block. As integers, magnitudes are ordered like their values, with
// infinity above and NaN above that.
PYKV_INLINE vi largest_magnitudes(const float* from) {
  vi most{};
  PYKV_UNROLL
  for (int v = 0; v < kBlockVecs; ++v) most = Larger::apply(load_words(from + v * kLanes) & 0x7fffffff, most);
  return most;
}

// 127 / largest; 0 for 0 and where that is infinite: tiny blocks are all 0.
PYKV_INLINE vf quantizing_factors(vf largest) {
  const vf inverse = 127.0F / largest;
  return inverse < __builtin_inff() ? inverse : vf{};
}

// Row `row` of a block; halves[i] gets sums of the integers of half i. |x * factor| < 2^22, so that
// adding 1.5 * 2^23 leaves no fraction bits: the addition rounds, and the low bits hold the integer.
PYKV_INLINE void store_integers(const float* from, float factor, std::int8_t* to, vi (&halves)[2]) {
  constexpr float kShift = 12582912.0F;
  constexpr std::int32_t kShiftBits = 0x4b400000;
  halves[0] = halves[1] = vi{};
  PYKV_UNROLL
  for (int v = 0; v < kBlockVecs; ++v) {
    const vi q = reinterpret_cast<vi>(load(from + v * kLanes) * factor + kShift) - kShiftBits;
    vi& half = halves[2 * v / kBlockVecs];
    half = Sum::apply(half, q);
    store_i8(to + v * kLanes, q);
  }
}

PYKV_INLINE void quantize_row(const float* from, const ActivationBlock& block, std::uint32_t row) {
  const vf largest = splat(as_float(vi{} + largest_lane(largest_magnitudes(from)))[0]);
  vi halves[2];
  store_integers(from, quantizing_factors(largest)[0], block.q + row * kActivationBlock, halves);
  const std::int32_t half = sum_of_lanes(halves[0]);
  const std::int32_t total = sum_of_lanes(Sum::apply(halves[0], halves[1]));
  const float scale = largest[0] / 127.0F;
  block.scale[row] = scale;
  block.scaled_sum[row] = scale * static_cast<float>(total);
  block.negated_sum[row] = negated(vi{} + total)[0];
  block.negated_half[row] = negated(vi{} + half)[0];
}

// The same of kLanes rows from `row` on.
PYKV_INLINE void quantize_rows(const float* from, std::size_t stride, const ActivationBlock& block,
                               std::uint32_t row) {
  vi rows[kLanes], first_halves[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) rows[i] = largest_magnitudes(from + i * stride);
  const vf largest = as_float(of_each<Larger>(rows));
  alignas(64) float factors[kLanes];
  store(factors, quantizing_factors(largest));
  for (std::size_t i = 0; i < kLanes; ++i) {
    vi halves[2];
    store_integers(from + i * stride, factors[i], block.q + (row + i) * kActivationBlock, halves);
    first_halves[i] = halves[0];
    rows[i] = Sum::apply(halves[0], halves[1]);
  }
  const vi half = of_each<Sum>(first_halves), total = of_each<Sum>(rows);
  const vf scale = largest / 127.0F;
  store(block.scale + row, scale);
  store(block.scaled_sum + row, scale * to_float(total));
  store(reinterpret_cast<float*>(block.negated_sum + row), as_float(negated(total)));
  store(reinterpret_cast<float*>(block.negated_half + row), as_float(negated(half)));
}

void quantize(const QuantizeTask& task) {
  const std::size_t bytes = activation_block_bytes(task.rows);
  for (std::uint32_t b = task.first_block; b < task.last_block; ++b) {
    const ActivationBlock block(task.panel + b * bytes, task.rows);
    const float* const from = task.in + std::size_t{b} * kActivationBlock;
    std::uint32_t row = 0;
    for (; row + kLanes <= task.rows; row += kLanes)
      quantize_rows(from + row * task.in_stride, task.in_stride, block, row);
    for (; row < task.rows; ++row) quantize_row(from + row * task.in_stride, block, row);
  }
}
