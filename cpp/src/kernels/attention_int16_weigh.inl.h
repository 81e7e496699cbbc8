// Both products of attention on 16-bit integers (int16.inl.h says how): the weights and the sum of V.

// Largest magnitudes of V of the slots of a piece; of q8_0 those that its scales allow.
void find_largest(const PartitionTask& task, const KvPiece& piece, float* largest,
                  AttentionScratch& scratch) {
  if (task.v.type == DType::f16) {
    const std::size_t stride = std::size_t{task.v.dim} * 2;
    const std::byte* const values = piece.v_tile + task.v.values_offset + piece.cell * stride;
    return find_largest_f16(values, stride, task.v.dim, piece.length, largest);
  }
  if (task.v.type == DType::q8_0) {
    const std::uint32_t blocks = task.v.dim / kBlock;
    const std::byte* scale = piece.v_tile + std::size_t{piece.cell} * blocks * 2;
    for (std::uint32_t c = 0; c < piece.length; ++c) {
      float most = 0;
      for (std::uint32_t b = 0; b < blocks; ++b, scale += 2) {
        const float d = __builtin_fabsf(load_one_f16(scale));
        most = d > most || d != d ? d : most;
      }
      largest[c] = 127.0F * most;
    }
    return;
  }
  std::int32_t most[kBlockCells] = {};
  for (std::uint32_t dim = 0; dim < task.v.dim; dim += kPanelWidth) {
    decode_cells(piece.v_tile, task.v, dim, piece.cell, piece.length, scratch.floats);
    for (std::uint32_t c = 0; c < piece.length; ++c) {
      vi bits = load_words(scratch.floats + c * kPanelWidth) & 0x7fffffff;
      PYKV_UNROLL
      for (int v = 1; v < kVecs; ++v)
        bits = Larger::apply(bits, load_words(scratch.floats + c * kPanelWidth + v * kLanes) & 0x7fffffff);
      const std::int32_t here = largest_lane(bits);
      most[c] = here > most[c] ? here : most[c];
    }
  }
  std::memcpy(largest, most, piece.length * sizeof(float));
}

// V of a piece, 16 elements from `dim` on, as words of a panel of the partition; value(c, v) has
// vector v of those of its cell c, factors[c] what turns them into integers.
template <class Value>
PYKV_INLINE void quantize_slots(const KvPiece& piece, const float* factors, Value value, float* panel) {
  const auto integer = [&](std::uint32_t c, int v) { return low_half(value(c, v), splat(factors[c])); };
  const auto half = [&](std::uint32_t c) {
    const std::uint32_t slot = piece.first + c;
    PYKV_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      float* const at = panel + slot / 2 * kPanelWidth + v * kLanes;
      const vi other = load_words(at);
      store(at, as_float(slot % 2 == 0 ? pair_words(integer(c, v), other >> 16)
                                       : pair_words(other, integer(c, v))));
    }
  };
  std::uint32_t c = 0;
  if (piece.first % 2 != 0) half(c++);
  c = quantize_pairs(piece, c, factors, value, panel);
  if (c < piece.length) half(c);
}

PYKV_INLINE void quantize_piece(const PartitionTask& task, const KvPiece& piece, std::uint32_t dim,
                                const float* factors, float* panel, AttentionScratch& scratch) {
  if (task.v.type == DType::f16 && dim + kPanelWidth <= task.v.dim) {
    const std::size_t stride = std::size_t{task.v.dim} * 2;
    const std::byte* const values =
        piece.v_tile + task.v.values_offset + piece.cell * stride + std::size_t{dim} * 2;
    return quantize_slots(
        piece, factors, [&](auto c, int v) { return load_f16(values + c * stride + v * kLanes * 2); }, panel);
  }
  if (task.v.type == DType::q8_0) {
    const std::uint32_t blocks = task.v.dim / kBlock;
    const std::byte* const scales = piece.v_tile + (std::size_t{piece.cell} * blocks + dim / kBlock) * 2;
    const std::byte* const codes =
        piece.v_tile + task.v.values_offset + std::size_t{piece.cell} * task.v.dim + dim;
    float scaled_factors[kBlockCells];
    for (std::uint32_t c = 0; c < piece.length; ++c)
      scaled_factors[c] = factors[c] * load_one_f16(scales + std::size_t{c} * blocks * 2);
    return quantize_slots(
        piece, scaled_factors,
        [&](auto c, int v) { return load_i8(codes + std::size_t{c} * task.v.dim + v * kLanes); }, panel);
  }
  decode_cells(piece.v_tile, task.v, dim, piece.cell, piece.length, scratch.floats);
  quantize_slots(
      piece, factors, [&](auto c, int v) { return load(scratch.floats + c * kPanelWidth + v * kLanes); },
      panel);
}

// Query i's scores become weights times `largest` of their slots, as integers in `pairs`. Returns what
// an integer stands for.
float soften_int16(const PartitionTask& task, std::uint32_t i, const float* largest, float* scores,
                   float* pairs) {
  const std::uint32_t begin = task.begins[i] / kLanes * kLanes;
  const std::uint32_t end = (task.ends[i] + kLanes - 1) / kLanes * kLanes;
  if (shaped(task)) {
    shape_scores(task, i, begin, end, scores);
    for (std::uint32_t j = begin; j < end; j += kLanes) store(scores + j, load(scores + j) * kLog2E);
  }
  hide_unseen(task, i, begin, end, scores);
  vf most = splat(lowest());
  for (std::uint32_t j = begin; j < end; j += kLanes) most = max(load(scores + j), most);
  const float top = max_lane(most);
  vf total{}, squares{};
  for (std::uint32_t j = begin; j < end; j += kLanes) {
    const vf weight = power_of_two(load(scores + j) - top);
    total += weight;
    const vf part = weighted(weight, load(largest + j));
    squares = multiply_add(part, part, squares);
    store(scores + j, part);
  }
  const vf length = square_root(splat(sum_lanes(squares)));
  const vf factor = factor_for(kWeightNorm, length);
  for (std::uint32_t j = begin; j < end; j += kLanes) store_halves(pairs + j / 2, load(scores + j), factor);
  task.result.max[i] = top * kLn2;
  task.result.sum[i] = sum_lanes(total);
  return length[0] / (kWeightNorm * kMostV);
}

// out = weights · V of one or two panels from `panel` on.
void weigh_panels_int16(const PartitionTask& task, const float* const* weights, const float* scales,
                        std::uint32_t panel, std::uint32_t panels, const float* tile) {
  constexpr std::size_t kStride = std::size_t{kPartitionPairs} * kPanelWidth;
  for (std::uint32_t i = 0; i < task.count; i += kMaxRows) {
    const std::uint32_t last = task.count - i < kMaxRows ? task.count - 1 : i + kMaxRows - 1;
    const std::uint32_t from = task.begins[i] / 2;
    const std::uint32_t count = (task.ends[last] + 1) / 2 - from;
    float* const out = task.result.out + i * task.result.stride + panel * kPanelWidth;
    const auto some = [&](auto rows, auto at_once, std::uint32_t p) {
      multiply_pairs<rows.value, at_once.value>(
          weights + i, tile + p * kStride, kStride, from, count, [&](int r, int c, vi sums) {
            store(out + static_cast<std::size_t>(r) * task.result.stride + p * kPanelWidth + c * kLanes,
                  to_float(sums) * scales[i + static_cast<std::uint32_t>(r)]);
          });
    };
    for_some_rows(last - i + 1, [&](auto rows) {
      if constexpr (pair_panels_at_once(rows.value) >= 2) {
        if (panels == 2) return some(rows, std::integral_constant<int, 2>{}, 0);
        some(rows, std::integral_constant<int, 1>{}, 0);
      } else {
        for (std::uint32_t p = 0; p < panels; ++p) some(rows, std::integral_constant<int, 1>{}, p);
      }
    });
  }
}

void weigh_int16(const PartitionTask& task, AttentionScratch& scratch) {
  if (!int16_pays(task)) return weigh(task, scratch);
  alignas(64) float factors[kPartitionPositions] = {};  // first largest magnitudes
  const float* weights[kQueryBlock];
  float scales[kQueryBlock];
  for (const KvPiece& piece : task.pieces) find_largest(task, piece, factors + piece.first, scratch);
  for (std::uint32_t i = 0; i < task.count; ++i) {
    float* const pairs = scratch.weight_pairs + i * kPartitionPairs;
    clear(pairs, kPartitionPairs);
    weights[i] = pairs;
    scales[i] = 0;
    task.result.sum[i] = 0;
    if (task.begins[i] != task.ends[i])
      scales[i] = soften_int16(task, i, factors, scratch.scores + i * kPartitionPositions, pairs);
  }
  for (std::uint32_t j = 0; j < kPartitionPositions; j += kLanes)
    store(factors + j, factor_for(kMostV, load(factors + j)));
  const std::uint32_t all = (task.v.dim + kPanelWidth - 1) / kPanelWidth;
  for (std::uint32_t panel = 0; panel < all; panel += 2) {
    const std::uint32_t panels = all - panel < 2 ? 1 : 2;
    for (const KvPiece& piece : task.pieces)
      for (std::uint32_t p = 0; p < panels; ++p)
        quantize_piece(task, piece, (panel + p) * kPanelWidth, factors + piece.first,
                       scratch.tile + std::size_t{p} * kPartitionPairs * kPanelWidth, scratch);
    weigh_panels_int16(task, weights, scales, panel, panels, scratch.tile);
  }
}
