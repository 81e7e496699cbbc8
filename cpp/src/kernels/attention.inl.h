// Attention over one partition: scores, softmax, weighted sum. Everything that is added
// up for a query is added in an order given by slots alone; what a query does not see, it does
// not touch (its bytes may decode to NaN).

constexpr std::uint32_t kGroupsAtOnce = 4;  // of K
constexpr std::uint32_t kPanelsAtOnce = 4;  // of V

Panel k_panel(const TileLayout& k, const std::byte* group) {
  return {k.type, group, group + k.fifth_offset, group + k.values_offset};
}

// Queries [begin, end) that see one of the slots [first, first + length) of the partition.
struct Seeing {
  std::uint32_t begin, end;
};

Seeing queries_seeing(const PartitionTask& task, std::uint32_t first, std::uint32_t length) {
  Seeing seeing{0, task.count};
  while (seeing.begin < task.count && task.ends[seeing.begin] <= first) ++seeing.begin;
  while (seeing.end > seeing.begin && task.begins[seeing.end - 1] >= first + length) --seeing.end;
  return seeing;
}

// How factors are kept and multiplied; kPerWord of them in a word of a tile.
struct FloatScheme {
  using Tile = FloatTile;
  using Math = FloatMath;
  static constexpr std::uint32_t kPerWord = 1;
};

// Up to four whole groups of cells of a piece, of which cells [skip, skip + length) lie at slots
// [first, first + length) of the partition.
struct Groups {
  std::size_t piece;
  const std::byte* bytes;
  std::uint32_t skip, length, first;
  std::uint32_t panel;  // the first one's number among those of all pieces
};

void prepare(const QueryTask& task) { std::memcpy(task.prepared, task.query, task.k.dim * sizeof(float)); }

// Products q·k for some groups.
template <class Scheme>
void score_groups(const PartitionTask& task, const Groups& groups, AttentionScratch& scratch) {
  const auto [piece, bytes, skip, length, first, panel] = groups;
  static_cast<void>(piece), static_cast<void>(panel);
  const auto [begin, end] = queries_seeing(task, first, length);
  if (begin == end) return;
  constexpr std::size_t kEdgeStride = std::size_t{kGroupsAtOnce} * kPanelWidth;
  const std::uint32_t panels = (skip + length + kPanelWidth - 1) / kPanelWidth;
  const std::uint32_t count = end - begin;
  for (std::uint32_t i = 0; i < count; ++i)
    std::memset(scratch.edge + i * kEdgeStride, 0, panels * kPanelWidth * sizeof(float));
  for (std::uint32_t k = 0; k < task.k.dim; k += kKTile) {
    const std::uint32_t depth = task.k.dim - k < kKTile ? task.k.dim - k : kKTile;
    const std::size_t stride = std::size_t{depth} / Scheme::kPerWord * kPanelWidth;
    for (std::uint32_t p = 0; p < panels; ++p)
      decode_group(k_panel(task.k, bytes + p * task.k.group_bytes), k, depth,
                   typename Scheme::Tile{scratch.tile + p * stride});
    multiply<typename Scheme::Math>(
        {scratch.tile, stride, panels, depth / Scheme::kPerWord, k / Scheme::kPerWord, kEdgeStride},
        task.queries + begin, count, scratch.edge);
  }
  for (std::uint32_t i = 0; i < count; ++i)
    std::memcpy(scratch.scores + (begin + i) * kPartitionPositions + first,
                scratch.edge + i * kEdgeStride + skip, length * sizeof(float));
}

// body(groups) for the cells of all pieces.
template <class Body>
PYKV_INLINE void for_groups(const PartitionTask& task, Body body) {
  for (std::size_t i = 0; i < task.pieces.size(); ++i) {
    const KvPiece& piece = task.pieces[i];
    for (std::uint32_t done = 0; done < piece.length;) {
      const std::uint32_t cell = piece.cell + done;
      const std::uint32_t skip = cell % kPanelWidth;
      const std::uint32_t room = kGroupsAtOnce * kPanelWidth - skip;
      const std::uint32_t length = piece.length - done < room ? piece.length - done : room;
      body(Groups{i, piece.k_tile + cell / kPanelWidth * task.k.group_bytes, skip, length, piece.first + done,
                  piece.panel + cell / kPanelWidth - piece.cell / kPanelWidth});
      done += length;
    }
  }
}

template <class Scheme>
void score_pieces(const PartitionTask& task, AttentionScratch& scratch) {
  for_groups(task, [&](const Groups& groups) { score_groups<Scheme>(task, groups, scratch); });
}

// Elements [dim, dim + 16 * panels) of V that is a view of K: K's tile, turned round. Elements
// past v_dim are K's.
void decode_view(const PartitionTask& task, const KvPiece& piece, std::uint32_t dim, std::uint32_t panels,
                 std::size_t stride, float* tile) {
  constexpr std::uint32_t kMost = kPanelsAtOnce * kPanelWidth;
  const std::uint32_t left = task.k.dim - dim;
  const std::uint32_t depth = left < kMost ? left : kMost;
  alignas(64) float columns[kMost * kPanelWidth] = {};
  for (std::uint32_t c = 0; c < piece.length; ++c) {
    const std::uint32_t cell = piece.cell + c;
    const std::uint32_t lane = cell % kPanelWidth;
    if (c == 0 || lane == 0) {
      const std::byte* group = piece.k_tile + cell / kPanelWidth * task.k.group_bytes;
      decode_panel(k_panel(task.k, group), dim, depth, columns);
    }
    for (std::uint32_t p = 0; p < panels; ++p)
      for (std::uint32_t d = 0; d < kPanelWidth; ++d)
        tile[p * stride + c * kPanelWidth + d] = columns[(p * kPanelWidth + d) * kPanelWidth + lane];
  }
}

// out += weights · V for the piece. Queries are multiplied together as far as all of them
// see, and each alone before and behind that.
void weigh_panels(const PartitionTask& task, const KvPiece& piece, Product product,
                  const float* const* weights, float* out) {
  const auto inside = [&](std::uint32_t slot) {
    const std::uint32_t n = slot > piece.first ? slot - piece.first : 0;
    return n < piece.length ? n : piece.length;
  };
  const float* const tile = product.tile;
  const auto add = [&](std::uint32_t i, std::uint32_t rows, std::uint32_t from, std::uint32_t to) {
    if (from >= to) return;
    product.tile = tile + from * kPanelWidth;
    product.count = to - from;
    product.x_offset = piece.first + from;
    multiply(product, weights + i, rows, out + i * product.out_stride);
  };
  const auto [first, last] = queries_seeing(task, piece.first, piece.length);
  for (std::uint32_t i = first; i < last; i += kMaxRows) {
    const std::uint32_t rows = last - i < kMaxRows ? last - i : kMaxRows;
    const std::uint32_t from = inside(task.begins[i + rows - 1]);
    const std::uint32_t to = inside(task.ends[i]);
    const std::uint32_t middle = from < to ? from : to;  // none see all: each alone
    for (std::uint32_t r = i; r < i + rows; ++r) add(r, 1, inside(task.begins[r]), middle);
    add(i, rows, from, to);
    for (std::uint32_t r = i; r < i + rows; ++r) {
      const std::uint32_t begin = inside(task.begins[r]);
      add(r, 1, begin > to ? begin : to, inside(task.ends[r]));
    }
  }
}

void weigh_piece(const PartitionTask& task, const KvPiece& piece, const float* const* weights,
                 AttentionScratch& scratch) {
  const std::size_t stride = std::size_t{piece.length} * kPanelWidth;
  const std::uint32_t all = (task.v.dim + kPanelWidth - 1) / kPanelWidth;
  for (std::uint32_t panel = 0; panel < all; panel += kPanelsAtOnce) {
    const std::uint32_t panels = all - panel < kPanelsAtOnce ? all - panel : kPanelsAtOnce;
    if (task.v_view_of_k) {
      decode_view(task, piece, panel * kPanelWidth, panels, stride, scratch.tile);
    } else {
      for (std::uint32_t p = 0; p < panels; ++p)
        decode_cells(piece.v_tile, task.v, (panel + p) * kPanelWidth, piece.cell, piece.length,
                     scratch.tile + p * stride);
    }
    weigh_panels(task, piece, {scratch.tile, stride, panels, 0, 0, task.result.stride}, weights,
                 task.result.out + panel * kPanelWidth);
  }
}

void score(const PartitionTask& task, AttentionScratch& scratch) { score_pieces<FloatScheme>(task, scratch); }

// Each query's scores become weights, its output 0.
void soften(const PartitionTask& task, AttentionScratch& scratch, const float** weights) {
  for (std::uint32_t i = 0; i < task.count; ++i) {
    float* const scores = scratch.scores + i * kPartitionPositions;
    weights[i] = scores;
    task.result.sum[i] = 0;
    if (task.begins[i] == task.ends[i]) continue;
    softmax(task, i, scores);
    std::memset(task.result.out + i * task.result.stride, 0, task.result.stride * sizeof(float));
  }
}

void weigh(const PartitionTask& task, AttentionScratch& scratch) {
  const float* weights[kQueryTile];
  soften(task, scratch, weights);
  for (const KvPiece& piece : task.pieces) weigh_piece(task, piece, weights, scratch);
}
