// Linear layers on 8-bit activations. A block of 32 elements is a dot product of integers,
// which is exact, and one step of the float32 chain of its output,
//   total := total + Σ u·q * (d * scale)  (+ m * scaled_sum),
// one for each half of a block where halves have scales of their own, blocks ascending, so that an output's
// bits depend on its row and its channel alone.

// How stored integers u stand for values: d * (u - bias), plus m where there is one. A block
// comes in parts, each with a d of its own: one, or two of 16 elements.
template <DType type>
struct Int8Form {
  static constexpr bool kOfK = is_k_type(type);
  static constexpr int kBits = type == DType::q8_0                           ? 8
                               : type == DType::q6_k                         ? 6
                               : has_fifth_bits(type) || type == DType::q5_k ? 5
                                                                             : 4;
  static constexpr int kParts = type == DType::q6_k ? 2 : 1;
  static constexpr bool kMinimum = has_minimum(type) || type == DType::q4_k || type == DType::q5_k;
  static constexpr int kBias = type == DType::q8_0 ? kBytesBias : kMinimum ? 0 : 1 << (kBits - 1);
  // Bytes of a block of 16 channels; a K block has eight of these.
  static constexpr std::size_t kRowBytes = kPanelWidth * 4;
  static constexpr std::size_t kScaleBytes =
      kOfK ? k_scale_place(kOfK ? type : DType::q4_k).bytes / 8 : kPanelWidth * 2 * (kMinimum ? 2 : 1);
  static constexpr std::size_t kFifthBytes = has_fifth_bits(type) ? kRowBytes : 0;
  static constexpr std::size_t kValueBytes = kRowBytes * (has_fifth_bits(type) ? 4 : kBits);
  static constexpr std::size_t kBytes = kScaleBytes + kFifthBytes + kValueBytes;
};

template <DType type>
struct IntegersOf {
  using Type = Codes<(1 << Int8Form<type>::kBits) - 1>;
};
template <>
struct IntegersOf<DType::q8_0> {
  using Type = Bytes;
};

// The integers of a block, elements 4 j … 4 j + 3 of each lane in word j. `upper` holds what
// is above four bits.
template <DType type>
PYKV_INLINE typename IntegersOf<type>::Type load_integers(const std::byte* values, const std::byte* upper,
                                                          int v) {
  constexpr int kBits = Int8Form<type>::kBits;
  vi words[8];
  PYKV_UNROLL
  for (std::size_t j = 0; j < (kBits == 8 ? 8 : 4); ++j) words[j] = load_word_row(values, j, v);
  if constexpr (kBits < 8) PYKV_UNROLL
  for (int j = 0; j < 4; ++j) {
    words[j + 4] = (words[j] >> 4) & 0x0f0f0f0f;
    words[j] &= 0x0f0f0f0f;
  }
  if constexpr (kBits == 5) {
    const vi bits = load_word_row(upper, 0, v);
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j) words[j] |= (j < 4 ? bits << (4 - j) : bits >> (j - 4)) & 0x10101010;
  }
  if constexpr (kBits == 6) {
    const vi bits[2] = {load_word_row(upper, 0, v), load_word_row(upper, 1, v)};
    PYKV_UNROLL
    for (int j = 0; j < 8; ++j)
      words[j] |= (j < 4 ? bits[j % 2] << (4 - j / 2 * 2) : bits[j % 2] >> (j / 2 * 2 - 4)) & 0x30303030;
  }
  return typename IntegersOf<type>::Type(words);
}

// A block of 16 channels, one vector of them.
template <DType type>
struct WeightBlock {
  using Form = Int8Form<type>;
  typename IntegersOf<type>::Type integers;
  vf d[Form::kParts];
  vf m;

  // Block `b` of a panel whose parts begin at `panel`.
  PYKV_INLINE WeightBlock(const Panel& panel, std::size_t b, int v)
      : integers(load_integers<type>(panel.values + b * Form::kValueBytes, upper(panel, b), v)), m{} {
    if constexpr (Form::kOfK) {
      take_k_scales(panel.scales + b / 8 * Form::kScaleBytes * 8, b % 8, v);
    } else {
      d[0] = load_scales(panel.scales + b * Form::kScaleBytes, 0, v);
      if constexpr (Form::kMinimum) m = load_scales(panel.scales + b * Form::kScaleBytes, 1, v);
    }
  }

 private:
  PYKV_INLINE static const std::byte* upper(const Panel& panel, std::size_t b) {
    if constexpr (Form::kOfK) return panel.values + b * Form::kValueBytes + 4 * Form::kRowBytes;
    return panel.fifth + b * Form::kFifthBytes;
  }

  // Scales of unit `unit` of a K block; d * scale is exact.
  PYKV_INLINE void take_k_scales(const std::byte* scales, std::size_t unit, int v) {
    constexpr KScalePlace place = k_scale_place(Form::kOfK ? type : DType::q4_k);
    const vf whole = load_scales(scales, 0, v);
    PYKV_UNROLL
    for (int part = 0; part < Form::kParts; ++part)
      d[part] = whole *
                k_small<type>(scales + place.scales, unit * Form::kParts + static_cast<std::size_t>(part), v);
    if constexpr (Form::kMinimum)
      m = -(load_scales(scales, 1, v) * k_small<type>(scales + place.minimums, unit, v));
  }
};

// sums[part][i]: what the integers of row `row + i` give, bias and all.
template <DType type, int kRows>
PYKV_INLINE void block_sums(const WeightBlock<type>& weight, const ActivationBlock& block, std::uint32_t row,
                            vi (*sums)[kRows]) {
  constexpr int kBias = Int8Form<type>::kBias;
  const std::int8_t* const q = block.q + row * kActivationBlock;
  if constexpr (Int8Form<type>::kParts == 1) {
    PYKV_UNROLL
    for (int i = 0; i < kRows; ++i) sums[0][i] = (vi{} + block.negated_sum[row + i]) * kBias;
    add_dots<kRows>(weight.integers, q, sums[0]);
  } else {
    PYKV_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const std::int32_t half = block.negated_half[row + i];
      sums[0][i] = (vi{} + half) * kBias;
      sums[1][i] = (vi{} + (block.negated_sum[row + i] - half)) * kBias;
    }
    add_dots<kRows, 0, 4>(weight.integers, q, sums[0]);
    add_dots<kRows, 4, 8>(weight.integers, q, sums[1]);
  }
}

template <DType type, int kRows>
PYKV_INLINE void add_block(const WeightBlock<type>& weight, const ActivationBlock& block, std::uint32_t row,
                           float* totals) {
  vi sums[Int8Form<type>::kParts][kRows];
  block_sums<type, kRows>(weight, block, row, sums);
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) {
    float* const at = totals + static_cast<std::size_t>(i) * kPanelWidth;
    vf total = load(at);
    PYKV_UNROLL
    for (int part = 0; part < Int8Form<type>::kParts; ++part)
      total = multiply_add(to_float(sums[part][i]), weight.d[part] * splat(block.scale[row + i]), total);
    if constexpr (Int8Form<type>::kMinimum)
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

// Block `b` of one weight panel times the same block of all rows.
template <DType type>
PYKV_INLINE void add_panel(const Panel& panel, std::size_t b, const ActivationBlock& block,
                           std::uint32_t rows, float* totals) {
  for (int v = 0; v < kVecs; ++v) {
    const WeightBlock<type> weight(panel, b, v);
    float* const lanes = totals + v * kLanes;
    std::uint32_t row = 0;
    for (; row + 4 <= rows; row += 4) add_block<type, 4>(weight, block, row, lanes + row * kPanelWidth);
    for (; row < rows; ++row) add_block<type, 1>(weight, block, row, lanes + row * kPanelWidth);
  }
}

// `panels` weight panels times one panel of activations: totals[panel][row][lane].
template <DType type>
void multiply_panels(const Int8LinearTask& task, const std::byte* weights, std::uint32_t panels,
                     std::byte* activations, std::uint32_t rows, float* totals) {
  constexpr std::size_t kBytes = Int8Form<type>::kBytes;
  constexpr std::size_t kTotals = std::size_t{kActivationRows} * kPanelWidth;
  const std::size_t block_bytes = activation_block_bytes(rows);
  // Alone a panel runs into the next one; of a group, the next group's is asked for.
  const std::uintptr_t ahead = panels == 1 ? 4096 : panels * task.panel_bytes;
  std::memset(totals, 0, panels * kTotals * sizeof(float));
  for (std::size_t b = 0; b < task.cols / kBlock; ++b, activations += block_bytes) {
    const ActivationBlock block(activations, rows);
    for (std::uint32_t p = 0; p < panels; ++p) {
      const std::byte* const from = weights + p * task.panel_bytes;
      prefetch_ahead<kBytes>(from + b * kBytes, ahead);
      add_panel<type>({type, from, from + task.fifth_offset, from + task.values_offset}, b, block, rows,
                      totals + p * kTotals);
    }
  }
}

// Rows outside, channels inside: a panel of activations stays in the caches next to the core,
// the weights of the task in the second-level one.
template <DType type>
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
      multiply_panels<type>(task, task.panels + channel / kPanelWidth * task.panel_bytes, panels, activations,
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
      return linear_int8_as<DType::q4_0>(task);
    case DType::q4_1:
      return linear_int8_as<DType::q4_1>(task);
    case DType::q5_0:
      return linear_int8_as<DType::q5_0>(task);
    case DType::q5_1:
      return linear_int8_as<DType::q5_1>(task);
    case DType::q4_k:
      return linear_int8_as<DType::q4_k>(task);
    case DType::q5_k:
      return linear_int8_as<DType::q5_k>(task);
    case DType::q6_k:
      return linear_int8_as<DType::q6_k>(task);
    default:
      return linear_int8_as<DType::q8_0>(task);
  }
}
