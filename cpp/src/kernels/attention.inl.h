// Attention over one partition: scores, softmax, weighted sum. Everything that is added
// up for a query is added in an order given by positions alone; what a query does not
// see, it does not touch (its bytes may decode to NaN).

constexpr std::uint32_t kGroupsAtOnce = 4;

// First query that sees position `position` of the partition.
std::uint32_t first_seeing(const PartitionTask& task, std::uint32_t position) {
  std::uint32_t i = 0;
  while (i < task.count && task.visible[i] <= position) ++i;
  return i;
}

// Scores of up to four whole groups of cells, of which cells [skip, skip + length) lie at
// positions [first, first + length) of the partition.
void score_groups(const PartitionTask& task, const std::byte* groups, std::uint32_t skip,
                  std::uint32_t length, std::uint32_t first, AttentionScratch& scratch) {
  const std::uint32_t begin = first_seeing(task, first);
  if (begin == task.count) return;
  const std::uint32_t panels = (skip + length + kPanelWidth - 1) / kPanelWidth;
  const std::size_t stride = std::size_t{task.k.dim} * kPanelWidth;
  for (std::uint32_t p = 0; p < panels; ++p) {
    const std::byte* group = groups + p * task.k.group_bytes;
    decode_panel({task.k.type, group, group + task.k.fifth_offset, group + task.k.values_offset}, 0,
                 task.k.dim, scratch.tile + p * stride);
  }
  constexpr std::size_t kEdgeStride = std::size_t{kGroupsAtOnce} * kPanelWidth;
  const std::uint32_t count = task.count - begin;
  const std::uint32_t width = panels * kPanelWidth;
  for (std::uint32_t i = 0; i < count; ++i)
    std::memset(scratch.edge + i * kEdgeStride, 0, width * sizeof(float));
  multiply({scratch.tile, stride, panels, task.k.dim, 0, kEdgeStride}, task.queries + begin, count,
           scratch.edge);
  for (std::uint32_t i = 0; i < count; ++i)
    std::memcpy(scratch.scores + (begin + i) * kPartitionPositions + first,
                scratch.edge + i * kEdgeStride + skip, length * sizeof(float));
}

void score_piece(const PartitionTask& task, const KvPiece& piece, AttentionScratch& scratch) {
  std::uint32_t done = 0;
  while (done < piece.length) {
    const std::uint32_t cell = piece.cell + done;
    const std::uint32_t skip = cell % kPanelWidth;
    const std::uint32_t room = kGroupsAtOnce * kPanelWidth - skip;
    const std::uint32_t length = piece.length - done < room ? piece.length - done : room;
    score_groups(task, piece.k_tile + cell / kPanelWidth * task.k.group_bytes, skip, length,
                 piece.first + done, scratch);
    done += length;
  }
}

// Scores become weights exp(scale * score - max), whose sum is added by lane (position
// modulo the vector width), then over lanes.
void softmax(const PartitionTask& task, std::uint32_t i, float* scores) {
  constexpr std::uint32_t kStep = kLanes;
  const std::uint32_t n = task.visible[i];
  const std::uint32_t padded = (n + kStep - 1) / kStep * kStep;
  const float lowest = -__builtin_inff();
  for (std::uint32_t j = n; j < padded; ++j) scores[j] = lowest;
  vf most = splat(lowest);
  for (std::uint32_t j = 0; j < padded; j += kStep) {
    // Padding stays -infinity, whatever the sign of the scale.
    const vf s = load(scores + j);
    const vf scaled = s * task.scale;
    store(scores + j, scaled);
    most = max(scaled, most);
  }
  for (std::uint32_t j = n; j < padded; ++j) scores[j] = lowest;
  const float top = max_lane(most);
  vf total{};
  for (std::uint32_t j = 0; j < padded; j += kStep) {
    const vf weight = exponential(load(scores + j) - top);
    store(scores + j, weight);
    total += weight;
  }
  task.result.max[i] = top;
  task.result.sum[i] = sum_lanes(total);
}

// out += weights · V for the piece. Queries are multiplied together as far as all of
// them see, then each alone.
void weigh_panels(const PartitionTask& task, const KvPiece& piece, Product product,
                  const float* const* weights, float* out) {
  const auto seen = [&](std::uint32_t i) {
    const std::uint32_t n = task.visible[i] > piece.first ? task.visible[i] - piece.first : 0;
    return n < piece.length ? n : piece.length;
  };
  const float* const tile = product.tile;
  for (std::uint32_t i = first_seeing(task, piece.first); i < task.count; i += kMaxRows) {
    const std::uint32_t rows = task.count - i < kMaxRows ? task.count - i : kMaxRows;
    const std::uint32_t common = seen(i);
    product.tile = tile;
    product.count = common;
    product.x_offset = piece.first;
    multiply(product, weights + i, rows, out + i * product.out_stride);
    product.tile = tile + common * kPanelWidth;
    product.x_offset = piece.first + common;
    for (std::uint32_t r = i; r < i + rows; ++r) {
      product.count = seen(r) - common;
      if (product.count != 0) multiply(product, weights + r, 1, out + r * product.out_stride);
    }
  }
}

void weigh_piece(const PartitionTask& task, const KvPiece& piece, const float* const* weights,
                 AttentionScratch& scratch) {
  constexpr std::uint32_t kPanels = 4;
  const std::size_t stride = std::size_t{piece.length} * kPanelWidth;
  const std::uint32_t all = (task.v.dim + kPanelWidth - 1) / kPanelWidth;
  for (std::uint32_t panel = 0; panel < all; panel += kPanels) {
    const std::uint32_t panels = all - panel < kPanels ? all - panel : kPanels;
    for (std::uint32_t p = 0; p < panels; ++p)
      decode_cells(piece.v_tile, task.v, (panel + p) * kPanelWidth, piece.cell, piece.length,
                   scratch.tile + p * stride);
    weigh_panels(task, piece, {scratch.tile, stride, panels, 0, 0, task.result.stride}, weights,
                 task.result.out + panel * kPanelWidth);
  }
}

void attend(const PartitionTask& task, AttentionScratch& scratch) {
  for (const KvPiece& piece : task.pieces) score_piece(task, piece, scratch);
  const float* weights[kQueryBlock];
  for (std::uint32_t i = 0; i < task.count; ++i) {
    weights[i] = scratch.scores + i * kPartitionPositions;
    if (task.visible[i] == 0) continue;
    softmax(task, i, scratch.scores + i * kPartitionPositions);
    std::memset(task.result.out + i * task.result.stride, 0, task.result.stride * sizeof(float));
  }
  for (const KvPiece& piece : task.pieces) weigh_piece(task, piece, weights, scratch);
}

void merge(const Partial& running, const Partial& next, std::uint32_t i, std::uint32_t dims) {
  const float top = running.max[i] > next.max[i] ? running.max[i] : next.max[i];
  const vf keep = splat(exponential(splat(running.max[i] - top))[0]);
  const vf take = splat(exponential(splat(next.max[i] - top))[0]);
  running.max[i] = top;
  running.sum[i] = running.sum[i] * keep[0] + next.sum[i] * take[0];
  float* out = running.out + i * running.stride;
  const float* from = next.out + i * next.stride;
  for (std::uint32_t d = 0; d < dims; d += kLanes)
    store(out + d, load(out + d) * keep + load(from + d) * take);
}
