// Activations as 8-bit integers (activations.h).

constexpr int kBlockVecs = static_cast<int>(kActivationBlock) / kLanes;

// The largest |x| of a block. As integers, magnitudes are ordered like their values, with
// infinity above and NaN above that.
PYKV_INLINE float largest_magnitude(const vf* x) {
  vi most{};
  PYKV_UNROLL
  for (int v = 0; v < kBlockVecs; ++v) {
    const vi magnitude = reinterpret_cast<vi>(x[v]) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  const std::int32_t bits = largest_lane(most);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Row `row` of a block. |x * inverse| < 2^22, so that adding 1.5 * 2^23 leaves no fraction
// bits: the addition rounds, and the low bits hold the integer.
PYKV_INLINE void quantize_block(const float* from, const ActivationBlock& block, std::uint32_t row) {
  constexpr float kShift = 12582912.0F;
  constexpr std::int32_t kShiftBits = 0x4b400000;
  vf x[kBlockVecs];
  PYKV_UNROLL
  for (int v = 0; v < kBlockVecs; ++v) x[v] = load(from + v * kLanes);
  const float largest = largest_magnitude(x);
  const float inverse = 127.0F / largest;
  const float factor = inverse < __builtin_inff() ? inverse : 0.0F;  // 0 / 0 and tiny blocks: all 0
  vi halves[2] = {};
  PYKV_UNROLL
  for (int v = 0; v < kBlockVecs; ++v) {
    const vi q = reinterpret_cast<vi>(x[v] * factor + kShift) - kShiftBits;
    halves[2 * v / kBlockVecs] += q;
    store_i8(block.q + row * kActivationBlock + v * kLanes, q);
  }
  const std::int32_t half = sum_of_lanes(halves[0]);
  const std::int32_t total = half + sum_of_lanes(halves[1]);
  const float scale = largest / 127.0F;
  block.scale[row] = scale;
  block.scaled_sum[row] = scale * static_cast<float>(total);
  block.negated_sum[row] = -total;
  block.negated_half[row] = -half;
}

void quantize(const QuantizeTask& task) {
  const std::size_t bytes = activation_block_bytes(task.rows);
  for (std::uint32_t b = task.first_block; b < task.last_block; ++b) {
    const ActivationBlock block(task.panel + b * bytes, task.rows);
    for (std::uint32_t row = 0; row < task.rows; ++row)
      quantize_block(task.in + row * task.in_stride + std::size_t{b} * kActivationBlock, block, row);
  }
}
