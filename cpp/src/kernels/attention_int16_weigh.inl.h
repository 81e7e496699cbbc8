// Both products of attention on 16-bit integers (int16.inl.h says how): the weights and the sum of V.

// Elements of these types of V are the scale of a block times a code of at most this; of others 0.
constexpr float most_code(DType type) {
  return type == DType::q8_0 || type == DType::iq4_nl ? 127.0F
         : type == DType::q5_0                        ? 16.0F
         : type == DType::q4_0                        ? 8.0F
                                                      : 0.0F;
}

// Largest magnitudes of V of the slots of a piece, or those that scales allow.
void find_largest(const PartitionTask& task, const KvPiece& piece, float* largest,
                  AttentionScratch& scratch) {
  if (task.v.type == DType::f16) {
    const std::size_t stride = std::size_t{task.v.dim} * 2;
    const std::byte* const values = piece.v_tile + task.v.values_offset + piece.cell * stride;
    return find_largest_f16(values, stride, task.v.dim, piece.length, largest);
  }
  if (const float most = most_code(task.v.type); most != 0) {
    const std::uint32_t blocks = task.v.dim / kBlock;
    const std::byte* const scales = piece.v_tile + std::size_t{piece.cell} * blocks * 2;
    find_largest_scales(scales, blocks, piece.length, largest);
    for (std::uint32_t c = 0; c < piece.length; ++c) largest[c] *= most;
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

// V of types with codes.
template <DType type>
void quantize_codes(const TileLayout& layout, const KvPiece& piece, std::uint32_t dim, const float* factors,
                    float* panel) {
  const std::size_t blocks = layout.dim / kBlock;
  const std::size_t first = piece.cell * blocks + dim / kBlock;
  const std::byte* const scales = piece.v_tile + first * 2;
  const std::byte* const fifth = piece.v_tile + layout.fifth_offset + first * 4;
  const std::byte* const codes = piece.v_tile + layout.values_offset + first * code_bytes(type);
  const int half = static_cast<int>(dim / kPanelWidth % 2);
  float scaled_factors[kBlockCells];
  for (std::uint32_t c = 0; c < piece.length; ++c)
    scaled_factors[c] = factors[c] * load_one_f16(scales + c * blocks * 2);
  quantize_slots(
      piece, scaled_factors,
      [&](std::size_t c, int v) {
        return cell_codes<type>(codes + c * blocks * code_bytes(type), fifth + c * blocks * 4, half,
                                v * kLanes);
      },
      panel);
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
  switch (task.v.type) {
    case DType::q8_0:
      return quantize_codes<DType::q8_0>(task.v, piece, dim, factors, panel);
    case DType::q4_0:
      return quantize_codes<DType::q4_0>(task.v, piece, dim, factors, panel);
    case DType::q5_0:
      return quantize_codes<DType::q5_0>(task.v, piece, dim, factors, panel);
    case DType::iq4_nl:
      return quantize_codes<DType::iq4_nl>(task.v, piece, dim, factors, panel);
    default:
      break;
  }
  decode_cells(piece.v_tile, task.v, dim, piece.cell, piece.length, scratch.floats);
  quantize_slots(
      piece, factors, [&](auto c, int v) { return load(scratch.floats + c * kPanelWidth + v * kLanes); },
      panel);
}

// The slots that query i sees, as whole vectors.
struct SeenVectors {
  std::uint32_t begin, end;
  PYKV_INLINE SeenVectors(const PartitionTask& task, std::uint32_t i)
      : begin(task.begins[i] / kLanes * kLanes),
        end(task.begins[i] == task.ends[i] ? begin : (task.ends[i] + kLanes - 1) / kLanes * kLanes) {}
};

// Of each lane of vectors the largest score of query i, of slots that it sees.
PYKV_INLINE vf largest_scores(const PartitionTask& task, std::uint32_t i, float* scores) {
  const auto [begin, end] = SeenVectors(task, i);
  if (shaped(task)) {
    shape_scores(task, i, begin, end, scores);
    for (std::uint32_t j = begin; j < end; j += kLanes) store(scores + j, load(scores + j) * kLog2E);
  }
  if (begin != end) hide_unseen(task, i, begin, end, scores);
  vf most = splat(lowest());
  for (std::uint32_t j = begin; j < end; j += kLanes) most = max(load(scores + j), most);
  return most;
}

// Query i's scores become weights times `largest` of their slots. Adds up, lane by lane, the weights and
// the squares of what they become: 0 of a query that sees nothing.
PYKV_INLINE void weigh_slots(const PartitionTask& task, std::uint32_t i, float top, const float* largest,
                             float* scores, vf& total, vf& squares) {
  const auto [begin, end] = SeenVectors(task, i);
  total = squares = vf{};
  for (std::uint32_t j = begin; j < end; j += kLanes) {
    const vf weight = power_of_two(load(scores + j) - top);
    total += weight;
    const vf part = weighted(weight, load(largest + j));
    squares = multiply_add(part, part, squares);
    store(scores + j, part);
  }
}

// What weigh_slots() made of query i, as integers in pairs; 0 where it sees nothing.
void store_weights(const PartitionTask& task, std::uint32_t i, float factor, const float* scores,
                   float* pairs) {
  const auto [begin, end] = SeenVectors(task, i);
  const std::uint32_t behind = end / 2 / kLanes * kLanes;
  clear(pairs, begin / 2);
  clear(pairs + behind, kPartitionPairs - behind);
  for (std::uint32_t j = begin; j < end; j += kLanes)
    store_halves(pairs + j / 2, load(scores + j), splat(factor));
}

constexpr auto kSoftened = static_cast<std::uint32_t>(kLanes);  // queries at once

// to[i]: the largest lane of vector i, of `count`; infinities behind them.
PYKV_INLINE void largest_lanes(vf* rows, std::uint32_t count, float* to) {
  if (count <= kSoftened / 4) {
    for (std::uint32_t i = 0; i < count; ++i) to[i] = max_lane(rows[i]);
    return;
  }
  for (std::uint32_t i = count; i < kSoftened; ++i) rows[i] = vf{};
  store(to, of_each<Larger>(rows));
}

// The same of the sums of lanes.
PYKV_INLINE void add_lanes(vf* rows, std::uint32_t count, float* to) {
  if (count <= kSoftened / 4) {
    for (std::uint32_t i = 0; i < count; ++i) to[i] = sum_lanes(rows[i]);
    return;
  }
  for (std::uint32_t i = count; i < kSoftened; ++i) rows[i] = vf{};
  store(to, sums_of_lanes(rows));
}

// Scores of `count` queries from `first` on become weights as integers, scales[i] what an integer stands
// for.
void soften_int16(const PartitionTask& task, std::uint32_t first, std::uint32_t count, const float* largest,
                  AttentionScratch& scratch, float* scales) {
  alignas(64) float tops[kSoftened], sums[kSoftened], lengths[kSoftened] = {}, factors[kSoftened];
  vf rows[kSoftened], squares[kSoftened];
  float* const scores = scratch.scores + first * kPartitionPositions;
  for (std::uint32_t i = 0; i < count; ++i)
    rows[i] = largest_scores(task, first + i, scores + i * kPartitionPositions);
  largest_lanes(rows, count, tops);
  for (std::uint32_t i = 0; i < count; ++i)
    weigh_slots(task, first + i, tops[i], largest, scores + i * kPartitionPositions, rows[i], squares[i]);
  add_lanes(rows, count, sums);
  add_lanes(squares, count, lengths);
  const vf length = square_root(load(lengths));
  store(factors, factor_for(kWeightNorm, length));
  store(lengths, length / splat(kWeightNorm * kMostV));
  for (std::uint32_t i = 0; i < count; ++i) {
    task.result.max[first + i] = tops[i] * kLn2;
    task.result.sum[first + i] = sums[i];
    scales[first + i] = lengths[i];
    store_weights(task, first + i, factors[i], scores + i * kPartitionPositions,
                  scratch.weight_pairs + (first + i) * kPartitionPairs);
  }
}

// out = weights · V of one or two panels from `panel` on.
void weigh_panels_int16(const PartitionTask& task, const float* const* weights, const float* scales,
                        std::uint32_t panel, std::uint32_t panels, const float* tile) {
  constexpr std::size_t kStride = std::size_t{kPartitionPairs} * kPanelWidth;
  const std::uint32_t parts = (task.count + kMaxRows - 1) / kMaxRows;
  for (std::uint32_t i = 0; i < task.count; i += kMaxRows) {
    if (panel == 0 && !task.ahead.empty()) ask({task.ahead.front(), task.k.bytes}, i / kMaxRows, parts);
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

// The largest magnitudes of V of all pieces, and what turns V into integers.
void find_factors(const PartitionTask& task, AttentionScratch& scratch, float* factors) {
  std::memset(scratch.v_largest, 0, sizeof scratch.v_largest);
  for (const KvPiece& piece : task.pieces)
    find_largest(task, piece, scratch.v_largest + piece.first, scratch);
  for (std::uint32_t j = 0; j < kPartitionPositions; j += kLanes)
    store(factors + j, factor_for(kMostV, load(scratch.v_largest + j)));
}

// V of all pieces.
void convert_v(const PartitionTask& task, AttentionScratch& scratch) {
  constexpr std::size_t kStride = std::size_t{kPartitionPairs} * kPanelWidth;
  alignas(64) float factors[kPartitionPositions];
  find_factors(task, scratch, factors);
  for (std::uint32_t dim = 0; dim < task.v.dim; dim += kPanelWidth)
    for (const KvPiece& piece : task.pieces)
      quantize_piece(task, piece, dim, factors + piece.first, scratch.v_pairs + dim / kPanelWidth * kStride,
                     scratch);
}

bool convert_int16(const PartitionTask& task, AttentionScratch& scratch) {
  if (!int16_pays(task) || task.pieces.empty()) return false;
  const KvPiece& last = task.pieces.back();
  const std::uint32_t behind = (last.cell + last.length - 1) / kPanelWidth - last.cell / kPanelWidth + 1;
  if (last.panel + behind > kConvertedPanels) return false;
  if (!scored_as_bytes(task.k.type)) convert_k(task, scratch);
  convert_v(task, scratch);
  return true;
}

void weigh_int16(const PartitionTask& task, AttentionScratch& scratch) {
  if (!int16_pays(task)) return weigh(task, scratch);
  const bool few = few_weights(task);
  alignas(64) float factors[kPartitionPositions + kLanes];
  if (few) find_factors(task, scratch, factors);
  if (!few && !task.converted) convert_v(task, scratch);
  const float* weights[kQueryTile];
  float scales[kQueryTile];
  for (std::uint32_t i = 0; i < task.count; ++i) weights[i] = scratch.weight_pairs + i * kPartitionPairs;
  for (std::uint32_t i = 0; i < task.count; i += kSoftened)
    soften_int16(task, i, task.count - i < kSoftened ? task.count - i : kSoftened, scratch.v_largest, scratch,
                 scales);
  const auto weigh_as_read = [&]<DType type>() {
    for_some_rows(task.count, [&](auto rows) {
      if constexpr (rows.value <= kFewRows)
        weigh_few<type, rows.value>(task, weights, scales, factors, scratch);
    });
  };
  if (few && task.v.type == DType::f16) return weigh_as_read.template operator()<DType::f16>();
  if (few && task.v.type == DType::q8_0) return weigh_as_read.template operator()<DType::q8_0>();
  if (few) return weigh_as_read.template operator()<DType::q4_0>();
  const std::uint32_t all = (task.v.dim + kPanelWidth - 1) / kPanelWidth;
  for (std::uint32_t panel = 0; panel < all; panel += 2)
    weigh_panels_int16(task, weights, scales, panel, all - panel < 2 ? 1 : 2,
                       scratch.v_pairs + std::size_t{panel} * kPartitionPairs * kPanelWidth);
}
