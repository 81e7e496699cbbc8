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

// With few rows a layer waits for memory; asking for it early enough hides that. Past the last
// panel that is an address not used otherwise, hence an integer.
template <std::size_t kBytes>
PYKV_INLINE void prefetch_ahead(const std::byte* from, std::uintptr_t ahead) {
  const auto begin = reinterpret_cast<std::uintptr_t>(from) + ahead;
  for (std::size_t at = 0; at < kBytes; at += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(begin + at));
}

// Weights meet a panel of activations in groups of panels, or activations of long rows would
// be fetched from the second-level cache for each of them.
constexpr std::uint32_t kGroupPanels = 4;

// One block of one weight panel times the same block of all rows.
template <class Form>
PYKV_INLINE void add_panel(const std::byte* scales, const std::byte* values, const ActivationBlock& block,
                           std::uint32_t rows, float* totals) {
  for (int v = 0; v < kVecs; ++v) {
    const WeightBlock<Form> weight(scales, values, v);
    float* const lanes = totals + v * kLanes;
    std::uint32_t row = 0;
    for (; row + 4 <= rows; row += 4) add_block<Form, 4>(weight, block, row, lanes + row * kPanelWidth);
    for (; row < rows; ++row) add_block<Form, 1>(weight, block, row, lanes + row * kPanelWidth);
  }
}

// `panels` weight panels times one panel of activations: totals[panel][row][lane].
template <class Form>
void multiply_panels(const Int8LinearTask& task, const std::byte* weights, std::uint32_t panels,
                     std::byte* activations, std::uint32_t rows, float* totals) {
  constexpr std::size_t kScaleBytes = Form::kScaleRows * kPanelWidth * 2;
  constexpr std::size_t kValueBytes = Form::kWordRows * kPanelWidth * 4;
  constexpr std::size_t kTotals = std::size_t{kActivationRows} * kPanelWidth;
  const std::size_t block_bytes = activation_block_bytes(rows);
  // Alone a panel runs into the next one; of a group, the next group's is asked for.
  const std::uintptr_t ahead = panels == 1 ? 4096 : panels * task.panel_bytes;
  std::memset(totals, 0, panels * kTotals * sizeof(float));
  for (std::size_t b = 0; b < task.cols / kBlock; ++b, activations += block_bytes) {
    const ActivationBlock block(activations, rows);
    for (std::uint32_t p = 0; p < panels; ++p) {
      const std::byte* const panel = weights + p * task.panel_bytes;
      prefetch_ahead<kScaleBytes + kValueBytes>(panel + b * (kScaleBytes + kValueBytes), ahead);
      add_panel<Form>(panel + b * kScaleBytes, panel + task.values_offset + b * kValueBytes, block, rows,
                      totals + p * kTotals);
    }
  }
}

// Rows outside, channels inside: a panel of activations stays in the caches next to the core,
// the weights of the task in the second-level one.
template <class Form>
void linear_int8_as(const Int8LinearTask& task) {
  alignas(64) float totals[kGroupPanels * kActivationRows * kPanelWidth];
  std::byte* activations = task.activations;
  for (std::uint32_t row = 0; row < task.rows; row += kActivationRows) {
    const std::uint32_t rows = task.rows - row < kActivationRows ? task.rows - row : kActivationRows;
    const std::uint32_t group = rows <= 4 ? 1 : kGroupPanels;
    float* const out = task.out + row * task.out_stride;
    for (std::uint32_t channel = 0; channel < task.channels; channel += group * kPanelWidth) {
      const std::uint32_t left = task.channels - channel;
      const std::uint32_t width = left < group * kPanelWidth ? left : group * kPanelWidth;
      const std::uint32_t panels = (width + kPanelWidth - 1) / kPanelWidth;
      multiply_panels<Form>(task, task.panels + channel / kPanelWidth * task.panel_bytes, panels, activations,
                            rows, totals);
      for (std::uint32_t r = 0; r < rows; ++r)
        for (std::uint32_t at = 0; at < width; at += kPanelWidth) {
          const std::size_t some = width - at < kPanelWidth ? width - at : kPanelWidth;
          std::memcpy(out + r * task.out_stride + channel + at,
                      totals + (at * kActivationRows + r * kPanelWidth), some * sizeof(float));
        }
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
