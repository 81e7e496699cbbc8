// Recurrent layers. Tokens of a stretch come one after the other, so an output's additions do
// not depend on where a stretch was cut.

// Where fewer than a vector of numbers are left, the other lanes are 0.
PYKV_INLINE vf load_some(const float* from, int count) {
  if (count >= kLanes) return load(from);
  float lanes[kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = from[i];
  return load(lanes);
}

PYKV_INLINE void store_some(float* to, vf v, int count) {
  if (count >= kLanes) return store(to, v);
  for (int i = 0; i < count; ++i) to[i] = v[i];
}

// One output of 16 channels: bias, then taps from the oldest input to the newest.
PYKV_INLINE void convolve_panel(const ConvTask& task, const float* const* rows, std::uint32_t channel,
                                float* out) {
  const float* taps = task.taps + std::size_t{channel} * task.tap_count;
  const int left = static_cast<int>(task.channels - channel);
  PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    const int at = v * kLanes;
    if (at >= left) return;
    vf sum = task.bias == nullptr ? vf{} : load_some(task.bias + channel + at, left - at);
    for (std::uint32_t j = 0; j < task.tap_count; ++j)
      sum =
          multiply_add(load(taps + j * kPanelWidth + at), load_some(rows[j] + channel + at, left - at), sum);
    store_some(out + channel + at, task.silu ? silu(sum) : sum, left - at);
  }
}

void convolve(const ConvTask& task) {
  static constexpr float kZeros[kConvChannels] = {};
  const std::uint32_t kept = task.tap_count - 1;
  const auto row = [&](std::int64_t i) {  // before the stretch: -kept … -1
    if (i >= 0) return task.in + static_cast<std::size_t>(i) * task.in_stride;
    return task.before == nullptr ? kZeros
                                  : task.before + static_cast<std::size_t>(i + kept) * task.state_stride;
  };
  const float* rows[kMaxTaps];
  for (std::uint32_t t = 0; t < task.rows; ++t) {
    for (std::uint32_t j = 0; j < task.tap_count; ++j) rows[j] = row(std::int64_t{t} + j - kept);
    for (std::uint32_t channel = 0; channel < task.channels; channel += kPanelWidth)
      convolve_panel(task, rows, channel, task.out + t * task.out_stride);
  }
  for (std::uint32_t j = 0; j < kept; ++j)
    std::memcpy(task.after + j * task.state_stride, row(std::int64_t{task.rows} + j - kept),
                task.channels * sizeof(float));
}

constexpr std::uint32_t kScanTokens = 64;  // whose rows stay in the L1 cache
constexpr int kScanStates = kLanes == 16 ? 8 : 4;

// `states` rows of the state, from `first` on, in 16 columns from `column` on, through tokens
// [begin, end). An output is d * x plus the products with c over ascending rows, carried from
// call to call in memory.
template <int states>
void scan_tile(const ScanTask& task, const float* before, std::uint32_t first, std::uint32_t column,
               std::uint32_t begin, std::uint32_t end) {
  const int left = static_cast<int>(task.head_dim - column);
  vf state[states][kVecs];
  PYKV_UNROLL
  for (int n = 0; n < states; ++n) PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    const std::size_t at = (first + static_cast<std::size_t>(n)) * task.head_dim + column;
    const bool none = before == nullptr || v * kLanes >= left;
    state[n][v] = none ? vf{} : load_some(before + at + v * kLanes, left - v * kLanes);
  }
  for (std::uint32_t t = begin; t < end; ++t) {
    const float* const b = task.b + t * task.in_stride + first;
    const float* const c = task.c + t * task.in_stride + first;
    float* const out = task.out + t * task.out_stride + column;
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      if (v * kLanes >= left) break;
      const vf x = load_some(task.x + t * task.in_stride + column + v * kLanes, left - v * kLanes);
      const vf scaled = x * task.dt[t];
      vf sum = first == 0 ? x * task.d : load_some(out + v * kLanes, left - v * kLanes);
      PYKV_UNROLL
      for (int n = 0; n < states; ++n) {
        state[n][v] = multiply_add(scaled, splat(b[n]), state[n][v] * task.decay[t]);
        sum = multiply_add(state[n][v], splat(c[n]), sum);
      }
      store_some(out + v * kLanes, sum, left - v * kLanes);
    }
  }
  PYKV_UNROLL
  for (int n = 0; n < states; ++n) PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    const std::size_t at = (first + static_cast<std::size_t>(n)) * task.head_dim + column;
    if (v * kLanes < left) store_some(task.after + at + v * kLanes, state[n][v], left - v * kLanes);
  }
}

void scan(const ScanTask& task) {
  for (std::uint32_t column = 0; column < task.head_dim; column += kPanelWidth)
    for (std::uint32_t begin = 0; begin < task.rows; begin += kScanTokens) {
      const std::uint32_t end = task.rows - begin < kScanTokens ? task.rows : begin + kScanTokens;
      const float* const before = begin == 0 ? task.before : task.after;
      std::uint32_t n = 0;
      for (; n + kScanStates <= task.state_size; n += kScanStates)
        scan_tile<kScanStates>(task, before, n, column, begin, end);
      for (; n < task.state_size; ++n) scan_tile<1>(task, before, n, column, begin, end);
    }
}
