// The softmax of a partition's scores and what is merged from it. Slots that a query does not
// see, or that no piece covers, count as scores of -infinity: a weight of exactly 0.

PYKV_INLINE float lowest() { return -__builtin_inff(); }

PYKV_INLINE void fill_lowest(float* scores, std::uint32_t begin, std::uint32_t end) {
  for (std::uint32_t j = begin; j < end; ++j) scores[j] = lowest();
}

// Slots of query i that hold no score. begin and end are those of whole vectors.
void hide_unseen(const PartitionTask& task, std::uint32_t i, std::uint32_t begin, std::uint32_t end,
                 float* scores) {
  fill_lowest(scores, begin, task.begins[i]);
  fill_lowest(scores, task.ends[i], end);
  if (!task.gaps) return;
  std::uint32_t covered = 0;
  for (const KvPiece& piece : task.pieces) {
    const std::uint32_t from = covered > begin ? covered : begin;
    fill_lowest(scores, from, piece.first < end ? piece.first : end);
    covered = piece.first + piece.length;
  }
}

// softcap and slopes, which few models have.
void shape_scores(const PartitionTask& task, std::uint32_t i, std::uint32_t begin, std::uint32_t end,
                  float* scores) {
  constexpr std::uint32_t kStep = kLanes;
  if (task.softcap != 0)
    for (std::uint32_t j = begin; j < end; j += kStep)
      store(scores + j, task.softcap * hyperbolic_tangent(load(scores + j) / task.softcap));
  if (task.slopes == nullptr) return;
  const vf slope = splat(task.slopes[i]);
  const vi query = vi{} + task.query_positions[i];
  for (std::uint32_t j = begin; j < end; j += kStep) {
    const vf distance = to_float(load_words(task.key_positions + j) - query);
    store(scores + j, multiply_add(slope, distance, load(scores + j)));
  }
}

// Products q·k become weights exp(score - max), whose sum is added by lane (slot modulo the
// vector width), then over lanes.
void softmax(const PartitionTask& task, std::uint32_t i, float* scores) {
  constexpr std::uint32_t kStep = kLanes;
  const std::uint32_t begin = task.begins[i] / kStep * kStep;
  const std::uint32_t end = (task.ends[i] + kStep - 1) / kStep * kStep;
  for (std::uint32_t j = begin; j < end; j += kStep) store(scores + j, load(scores + j) * task.scale);
  if (task.softcap != 0 || task.slopes != nullptr) shape_scores(task, i, begin, end, scores);
  hide_unseen(task, i, begin, end, scores);
  vf most = splat(lowest());
  for (std::uint32_t j = begin; j < end; j += kStep) most = max(load(scores + j), most);
  const float top = max_lane(most);
  vf total{};
  for (std::uint32_t j = begin; j < end; j += kStep) {
    const vf weight = exponential(load(scores + j) - top);
    store(scores + j, weight);
    total += weight;
  }
  task.result.max[i] = top;
  task.result.sum[i] = sum_lanes(total);
}

// What query i has so far and what comes, by their factors.
void merge_query(const Partial& running, const Partial& next, std::uint32_t i, std::uint32_t dims, float keep,
                 float take) {
  if (next.sum[i] == 0) return;
  float* out = running.out + i * running.stride;
  const float* from = next.out + i * next.stride;
  if (running.sum[i] == 0) {
    running.max[i] = next.max[i];
    running.sum[i] = next.sum[i];
    std::memcpy(out, from, dims * sizeof(float));
    return;
  }
  running.max[i] = running.max[i] > next.max[i] ? running.max[i] : next.max[i];
  running.sum[i] = running.sum[i] * keep + next.sum[i] * take;
  for (std::uint32_t d = 0; d < dims; d += kLanes)
    store(out + d, load(out + d) * keep + load(from + d) * take);
}

void merge(const Partial& running, const Partial& next, std::uint32_t count, std::uint32_t dims) {
  for (std::uint32_t first = 0; first < count; first += kLanes) {
    const std::uint32_t here = count - first < kLanes ? count - first : kLanes;
    alignas(64) float before[kLanes] = {}, after[kLanes] = {};
    std::memcpy(before, running.max + first, here * sizeof(float));
    std::memcpy(after, next.max + first, here * sizeof(float));
    const vf top = max(load(before), load(after));
    store(before, exponential(load(before) - top));
    store(after, exponential(load(after) - top));
    for (std::uint32_t i = 0; i < here; ++i) merge_query(running, next, first + i, dims, before[i], after[i]);
  }
}

void normalize(const Partial& done, std::uint32_t i, std::uint32_t dims, const float* sink, float* out) {
  float sum = done.sum[i];
  float keep = 1.0F;
  if (sink != nullptr) {
    const float top = done.max[i] > *sink ? done.max[i] : *sink;
    keep = exponential(splat(done.max[i] - top))[0];
    sum = sum * keep + exponential(splat(*sink - top))[0];
  }
  const float factor = keep / sum;
  const float* from = done.out + i * done.stride;
  for (std::uint32_t d = 0; d < dims; ++d) out[d] = from[d] * factor;
}
