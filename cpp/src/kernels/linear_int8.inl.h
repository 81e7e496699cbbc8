// Linear layers on 8-bit activations. A block of 32 elements is a dot product of integers,
// which is exact, and one step of the float32 chain of its output,
//   total := total + Σ u·q * (d * scale)  (+ m * scaled_sum),
// blocks ascending, so that an output's bits depend on its row and its channel alone.

// How stored integers u stand for values: d * (u - bias), plus m where there is one.
struct Q4_0Form {
  using Integers = Nibbles;
  static constexpr std::size_t kWordRows = kBlock / 8;
  static constexpr std::size_t kScaleRows = 1;
  static constexpr int kBias = 8;
};
struct Q4_1Form {
  using Integers = Nibbles;
  static constexpr std::size_t kWordRows = kBlock / 8;
  static constexpr std::size_t kScaleRows = 2;
  static constexpr int kBias = 0;
};
struct Q8_0Form {
  using Integers = Bytes;
  static constexpr std::size_t kWordRows = kBlock / 4;
  static constexpr std::size_t kScaleRows = 1;
  static constexpr int kBias = kBytesBias;
};

// A block of 16 channels, one vector of them.
template <class Form>
struct WeightBlock {
  typename Form::Integers integers;
  vf d, m;

  PYKV_INLINE WeightBlock(const std::byte* scales, const std::byte* values, int v)
      : integers(take_integers(values, v)), d(load_scales(scales, 0, v)), m{} {
    if constexpr (Form::kScaleRows == 2) m = load_scales(scales, 1, v);
  }

 private:
  PYKV_INLINE static typename Form::Integers take_integers(const std::byte* values, int v) {
    vi words[Form::kWordRows];
    PYKV_UNROLL
    for (std::size_t row = 0; row < Form::kWordRows; ++row) words[row] = load_word_row(values, row, v);
    return typename Form::Integers(words);
  }
};

template <class Form, int kRows>
PYKV_INLINE void add_block(const WeightBlock<Form>& weight, const ActivationBlock& block, std::uint32_t row,
                           float* totals) {
  vi sums[kRows];
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) sums[i] = (vi{} + block.negated_sum[row + i]) * Form::kBias;
  add_dots<kRows>(weight.integers, block.q + row * kActivationBlock, sums);
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    float* const at = totals + static_cast<std::size_t>(i) * kPanelWidth;
    vf total = multiply_add(to_float(sums[i]), weight.d * splat(block.scale[row + i]), load(at));
    if constexpr (Form::kScaleRows == 2)
      total = multiply_add(weight.m, splat(block.scaled_sum[row + i]), total);
    store(at, total);
  }
}

// One panel of weights times one panel of activations: totals[row * 16 + lane].
template <class Form>
void multiply_panels(const Int8LinearTask& task, const std::byte* panel, std::byte* activations,
                     std::uint32_t rows, float* totals) {
  constexpr std::size_t kScaleBytes = Form::kScaleRows * kPanelWidth * 2;
  constexpr std::size_t kValueBytes = Form::kWordRows * kPanelWidth * 4;
  // With few rows a layer waits for memory. Asking for it this much earlier is enough for it
  // to arrive; past the last panel that is an address not used otherwise, hence an integer.
  constexpr std::size_t kAhead = 2560;
  const auto begin = reinterpret_cast<std::uintptr_t>(panel);
  const std::size_t block_bytes = activation_block_bytes(rows);
  std::memset(totals, 0, rows * kPanelWidth * sizeof(float));
  for (std::size_t b = 0; b < task.cols / kBlock; ++b, activations += block_bytes) {
    const ActivationBlock block(activations, rows);
    for (std::size_t at = 0; at < kScaleBytes + kValueBytes; at += 64)
      __builtin_prefetch(
          reinterpret_cast<const void*>(begin + b * (kScaleBytes + kValueBytes) + kAhead + at));
    for (int v = 0; v < kVecs; ++v) {
      const WeightBlock<Form> weight(panel + b * kScaleBytes, panel + task.values_offset + b * kValueBytes,
                                     v);
      float* const lanes = totals + v * kLanes;
      std::uint32_t row = 0;
      for (; row + 2 <= rows; row += 2) add_block<Form, 2>(weight, block, row, lanes + row * kPanelWidth);
      if (row < rows) add_block<Form, 1>(weight, block, row, lanes + row * kPanelWidth);
    }
  }
}

// Rows outside, channels inside: a panel of activations stays in the first-level cache, the
// weights of the task in the second.
template <class Form>
void linear_int8_as(const Int8LinearTask& task) {
  alignas(64) float totals[kActivationRows * kPanelWidth];
  std::byte* activations = task.activations;
  for (std::uint32_t row = 0; row < task.rows; row += kActivationRows) {
    const std::uint32_t rows = task.rows - row < kActivationRows ? task.rows - row : kActivationRows;
    float* const out = task.out + row * task.out_stride;
    const std::byte* panel = task.panels;
    for (std::uint32_t channel = 0; channel < task.channels; channel += kPanelWidth) {
      multiply_panels<Form>(task, panel, activations, rows, totals);
      const std::uint32_t left = task.channels - channel;
      const std::size_t width = left < kPanelWidth ? left : kPanelWidth;
      for (std::uint32_t r = 0; r < rows; ++r)
        std::memcpy(out + r * task.out_stride + channel, totals + r * kPanelWidth, width * sizeof(float));
      panel += task.panel_bytes;
    }
    activations += activation_bytes(rows, task.cols);
  }
}

void linear_int8(const Int8LinearTask& task) {
  switch (task.type) {
    case DType::q4_0:
      return linear_int8_as<Q4_0Form>(task);
    case DType::q4_1:
      return linear_int8_as<Q4_1Form>(task);
    default:
      return linear_int8_as<Q8_0Form>(task);
  }
}
