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

// A block of 16 channels, some vectors of them.
template <DType type, int kWide>
struct WeightBlock {
  using Form = Int8Form<type>;
  struct Scales {
    vf d[Form::kParts];
    vf m;
  };
  typename IntegersOf<type>::Type integers[kWide];
  Scales scales[kWide];

  // Vectors from `first` on of block `b` of a panel.
  PYKV_INLINE WeightBlock(const Panel& panel, std::size_t b, int first) {
    PYKV_UNROLL
    for (int v = 0; v < kWide; ++v) {
      integers[v] = load_integers<type>(panel.values + b * Form::kValueBytes, upper(panel, b), first + v);
      scales[v] = scales_of(panel, b, first + v);
    }
  }

 private:
  PYKV_INLINE static const std::byte* upper(const Panel& panel, std::size_t b) {
    if constexpr (Form::kOfK) return panel.values + b * Form::kValueBytes + 4 * Form::kRowBytes;
    return panel.fifth + b * Form::kFifthBytes;
  }

  PYKV_INLINE static Scales scales_of(const Panel& panel, std::size_t b, int v) {
    if constexpr (Form::kOfK) return k_scales(panel.scales + b / 8 * Form::kScaleBytes * 8, b % 8, v);
    Scales taken{{load_scales(panel.scales + b * Form::kScaleBytes, 0, v)}, {}};
    if constexpr (Form::kMinimum) taken.m = load_scales(panel.scales + b * Form::kScaleBytes, 1, v);
    return taken;
  }

  // Scales of unit `unit` of a K block; d * scale is exact.
  PYKV_INLINE static Scales k_scales(const std::byte* scales, std::size_t unit, int v) {
    constexpr KScalePlace place = k_scale_place(Form::kOfK ? type : DType::q4_k);
    const vf whole = load_scales(scales, 0, v);
    Scales taken{};
    PYKV_UNROLL
    for (int part = 0; part < Form::kParts; ++part)
      taken.d[part] = whole * k_small<type>(scales + place.scales,
                                            unit * Form::kParts + static_cast<std::size_t>(part), v);
    if constexpr (Form::kMinimum)
      taken.m = -(load_scales(scales, 1, v) * k_small<type>(scales + place.minimums, unit, v));
    return taken;
  }
};

// sums[part][v][i]: what the integers of row `row + i` give, bias and all.
template <DType type, int kWide, int kRows>
PYKV_INLINE void block_sums(const WeightBlock<type, kWide>& weight, const ActivationBlock& block, int row,
                            vi (*sums)[kWide][kRows]) {
  constexpr std::uint32_t kBias = Int8Form<type>::kBias;
  const std::int8_t* const q = block.q + row * static_cast<int>(kActivationBlock);
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) PYKV_UNROLL
  for (int v = 0; v < kWide; ++v) {
    const auto all = static_cast<std::uint32_t>(block.negated_sum[row + i]);  // of NaN it may wrap
    if constexpr (Int8Form<type>::kParts == 1) {
      sums[0][v][i] = vi((vu{} + all) * kBias);
    } else {
      const auto half = static_cast<std::uint32_t>(block.negated_half[row + i]);
      sums[0][v][i] = vi((vu{} + half) * kBias);
      sums[1][v][i] = vi((vu{} + (all - half)) * kBias);
    }
  }
  if constexpr (Int8Form<type>::kParts == 1) {
    add_dots<kRows>(weight.integers, q, sums[0]);
  } else {
    add_dots<kRows, 0, 4>(weight.integers, q, sums[0]);
    add_dots<kRows, 4, 8>(weight.integers, q, sums[1]);
  }
}

// One more step of the totals of some rows, totals[i][v].
template <DType type, int kWide, int kRows>
PYKV_INLINE void add_block(const WeightBlock<type, kWide>& weight, const ActivationBlock& block, int row,
                           vf (*totals)[kWide]) {
  vi sums[Int8Form<type>::kParts][kWide][kRows];
  block_sums<type, kWide, kRows>(weight, block, row, sums);
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) PYKV_UNROLL
  for (int v = 0; v < kWide; ++v) {
    const auto& scales = weight.scales[v];
    vf total = totals[i][v];
    PYKV_UNROLL
    for (int part = 0; part < Int8Form<type>::kParts; ++part)
      total = multiply_add(to_float(sums[part][v][i]), scales.d[part] * splat(block.scale[row + i]), total);
    if constexpr (Int8Form<type>::kMinimum)
      total = multiply_add(scales.m, splat(block.scaled_sum[row + i]), total);
    totals[i][v] = total;
  }
}

// With few rows a layer waits for memory; asking for it early enough hides that. Past the last
// panel that is an address not used otherwise, hence an integer.
template <std::size_t kBytes>
PYKV_INLINE void prefetch_ahead(const std::byte* from) {
  constexpr std::uintptr_t kAhead = 8192;
  const auto begin = reinterpret_cast<std::uintptr_t>(from) + kAhead;
  for (std::size_t at = 0; at < kBytes; at += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(begin + at));
}

// Lanes [0, n), at least one.
PYKV_INLINE void store_some(float* to, vf x, std::size_t n) {
  if (n >= kLanes) return store(to, x);
  for (std::size_t i = 0; i < n; ++i) to[i] = x[i];
}

// A panel of weights times rows of a panel of activations.
struct PanelProduct {
  Panel weights;
  std::byte* activations = nullptr;
  std::uint32_t rows = 0;  // of the panel of activations
  std::uint32_t blocks = 0;
  bool first = false;  // time that these weights are read
  float* out = nullptr;
  std::size_t out_stride = 0;
  std::uint32_t channels = 0;
};

template <DType type>
PYKV_INLINE void prefetch_block(const PanelProduct& product, std::uint32_t b) {
  if (product.first)
    prefetch_ahead<Int8Form<type>::kBytes>(product.weights.scales + b * Int8Form<type>::kBytes);
}

// Vector `v` of row `row` of the outputs.
PYKV_INLINE void store_total(const PanelProduct& product, std::uint32_t row, int v, vf total) {
  const auto lane = static_cast<std::uint32_t>(v * kLanes);
  if (lane < product.channels)
    store_some(product.out + row * product.out_stride + lane, total, product.channels - lane);
}

// Rows whose sums stay in registers.
template <DType type>
constexpr int kRowsOfSums = 4 / Int8Form<type>::kParts;

// Rows [row, row + kRows), whose totals stay in registers: few rows, or a vector has a whole panel.
template <DType type, int kRows>
void multiply_rows(const PanelProduct& product, std::uint32_t row) {
  constexpr int kStep = kRows < kRowsOfSums<type> ? kRows : kRowsOfSums<type>;
  vf totals[kVecs][kRows][1] = {};
  std::byte* activations = product.activations;
  const std::size_t block_bytes = activation_block_bytes(product.rows);
  for (std::uint32_t b = 0; b < product.blocks; ++b, activations += block_bytes) {
    prefetch_block<type>(product, b);
    const ActivationBlock block = ActivationBlock(activations, product.rows).from(row);
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const WeightBlock<type, 1> weight(product.weights, b, v);
      PYKV_UNROLL
      for (int i = 0; i < kRows; i += kStep) add_block<type, 1, kStep>(weight, block, i, totals[v] + i);
    }
  }
  PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v)
    store_total(product, row + static_cast<std::uint32_t>(i), v, totals[v][i][0]);
}

// All rows, block by block: its integers, made once, and the totals come from the cache next to the
// core, and an activation in a register meets all vectors of a panel.
template <DType type>
void multiply_blocks(const PanelProduct& product) {
  constexpr int kStep = kRowsOfSums<type>;
  const int rows = static_cast<int>(product.rows);
  vf totals[kActivationRows][kVecs] = {};
  std::byte* activations = product.activations;
  for (std::uint32_t b = 0; b < product.blocks; ++b) {
    prefetch_block<type>(product, b);
    const ActivationBlock block(activations, product.rows);
    const WeightBlock<type, kVecs> weight(product.weights, b, 0);
    int row = 0;
    for (; row + kStep <= rows; row += kStep) {
      read_again(weight);
      add_block<type, kVecs, kStep>(weight, block, row, totals + row);
    }
    for (; row < rows; ++row) {
      read_again(weight);
      add_block<type, kVecs, 1>(weight, block, row, totals + row);
    }
    activations += activation_block_bytes(product.rows);
  }
  for (std::uint32_t row = 0; row < product.rows; ++row)
    for (int v = 0; v < kVecs; ++v) store_total(product, row, v, totals[row][v]);
}

template <DType type>
void multiply_panel(PanelProduct product) {
  if constexpr (kVecs > 1)
    if (product.rows >= kRowsOfSums<type>) return multiply_blocks<type>(product);
  std::uint32_t row = 0;
  const auto take = [&](auto rows) {
    for (; row + rows.value <= product.rows; row += rows.value) {
      multiply_rows<type, rows.value>(product, row);
      product.first = false;
    }
  };
  if constexpr (kVecs == 1) {
    take(std::integral_constant<int, 16>{});
    take(std::integral_constant<int, 8>{});
    take(std::integral_constant<int, 4>{});
    take(std::integral_constant<int, 2>{});
  } else {
    take(std::integral_constant<int, 2>{});
  }
  take(std::integral_constant<int, 1>{});
}

// Rows outside, channels inside: a panel of activations stays in the caches next to the core,
// the weights of the task in the second-level one.
template <DType type>
void linear_int8_as(const Int8LinearTask& task) {
  PanelProduct product;
  product.activations = task.activations;
  product.blocks = task.cols / kBlock;
  product.first = true;
  product.out_stride = task.out_stride;
  for (std::uint32_t row = 0; row < task.rows; row += kActivationRows) {
    product.rows = task.rows - row < kActivationRows ? task.rows - row : kActivationRows;
    const std::byte* panel = task.panels;
    for (std::uint32_t at = 0; at < task.channels; at += kPanelWidth, panel += task.panel_bytes) {
      product.weights = {type, panel, panel + task.fifth_offset, panel + task.values_offset};
      product.out = task.out + row * task.out_stride + at;
      product.channels = task.channels - at < kPanelWidth ? task.channels - at : kPanelWidth;
      multiply_panel<type>(product);
    }
    product.activations += activation_bytes(product.rows, task.cols);
    product.first = false;
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
