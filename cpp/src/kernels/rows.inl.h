// Operations on one row of activations. Results depend on the row alone.

void rms_norm(const float* x, const float* gain, float epsilon, std::uint32_t n, float* out) {
  constexpr std::uint32_t kStep = kLanes;
  vf squares{};
  std::uint32_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    const vf v = load(x + i);
    squares = multiply_add(v, v, squares);
  }
  float sum = sum_lanes(squares);
  for (; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0F / __builtin_sqrtf(sum / static_cast<float>(n) + epsilon);
  for (i = 0; i + kStep <= n; i += kStep) store(out + i, load(x + i) * scale * load(gain + i));
  for (; i < n; ++i) out[i] = x[i] * scale * gain[i];
}

PYKV_INLINE vf silu(vf x) { return x / (1.0F + exponential(-x)); }

void silu_mul(float* gate, const float* up, std::size_t n) {
  constexpr std::size_t kStep = kLanes;
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) store(gate + i, silu(load(gate + i)) * load(up + i));
  for (; i < n; ++i) gate[i] = silu(splat(gate[i]))[0] * up[i];
}

// gelu by its approximation with tanh, written as a logistic function.
PYKV_INLINE vf gelu(vf x) {
  constexpr float kRoot = 1.5957691216F;  // 2 sqrt(2 / pi)
  return x / (1.0F + exponential(-kRoot * (x + 0.044715F * x * x * x)));
}

void gelu_mul(float* gate, const float* up, std::size_t n) {
  constexpr std::size_t kStep = kLanes;
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) store(gate + i, gelu(load(gate + i)) * load(up + i));
  for (; i < n; ++i) gate[i] = gelu(splat(gate[i]))[0] * up[i];
}

// gpt-oss: the gate at most 7, `up` in [-7, 7] and one more; the logistic function of 1.702 x.
PYKV_INLINE vf clamped_silu(vf gate, vf up) {
  const vf limit = splat(7.0F);
  const vf x = gate > limit ? limit : gate;
  const vf below = up > limit ? limit : up;
  const vf y = below < -limit ? -limit : below;
  return x / (1.0F + exponential(-1.702F * x)) * (y + 1.0F);
}

void clamped_silu_mul(float* gate, const float* up, std::size_t n) {
  constexpr std::size_t kStep = kLanes;
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) store(gate + i, clamped_silu(load(gate + i), load(up + i)));
  for (; i < n; ++i) gate[i] = clamped_silu(splat(gate[i]), splat(up[i]))[0];
}

void softcap(float* x, float cap, std::size_t n) {
  constexpr std::size_t kStep = kLanes;
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) store(x + i, cap * hyperbolic_tangent(load(x + i) / cap));
  for (; i < n; ++i) x[i] = cap * hyperbolic_tangent(splat(x[i]) / cap)[0];
}

void encode_f16(const float* x, std::size_t n, std::byte* out) {
  constexpr std::size_t kStep = kLanes;
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) store_f16(out + 2 * i, load(x + i));
  for (; i < n; ++i) {
    std::byte halves[2 * kLanes];
    store_f16(halves, splat(x[i]));
    std::memcpy(out + 2 * i, halves, 2);
  }
}

// encode_row() of q8_0 (quant.h): NaN counts as 0.
PYKV_INLINE void encode_q8_0_block(const float* from, std::byte* out) {
  constexpr float kMostF16 = 65504.0F, kMost = 127.0F * kMostF16, kShift = 12582912.0F;
  constexpr std::int32_t kShiftBits = 0x4b400000;
  constexpr int kVectors = static_cast<int>(kBlock) / kLanes;
  vf x[kVectors], most{};
  PYKV_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    x[v] = load(from + v * kLanes);
    x[v] = x[v] == x[v] ? x[v] : vf{};
    x[v] = x[v] < kMost ? x[v] : splat(kMost);
    x[v] = x[v] > -kMost ? x[v] : splat(-kMost);
    most = max(as_float(reinterpret_cast<vi>(x[v]) & 0x7fffffff), most);
  }
  const float d = max_lane(most) / 127.0F;
  const float inverse = 1.0F / d < __builtin_inff() ? 1.0F / d : 0.0F;
  std::byte scale[kLanes * 2];
  store_f16(scale, splat(d < kMostF16 ? d : kMostF16));
  std::memcpy(out, scale, 2);
  PYKV_UNROLL
  for (int v = 0; v < kVectors; ++v)
    store_i8(reinterpret_cast<std::int8_t*>(out) + 2 + v * kLanes,
             reinterpret_cast<vi>(x[v] * inverse + kShift) - kShiftBits);
}

void encode_q8_0(const float* x, std::size_t n, std::byte* out) {
  constexpr std::size_t kBytes = 2 + kBlock;
  for (std::size_t i = 0; i < n; i += kBlock) encode_q8_0_block(x + i, out + i / kBlock * kBytes);
}

void add(float* accumulator, const float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) accumulator[i] += x[i];
}
