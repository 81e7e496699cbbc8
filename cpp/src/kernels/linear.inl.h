// Linear layers: four panels at a time, their columns in chunks that fit the L1 cache.

constexpr std::uint32_t kTilePanels = 4;
constexpr std::uint32_t kTileDepth = 64;  // columns of a chunk, a multiple of the block size

// With few rows a layer waits for memory, and four panels read at once are more streams
// than the hardware follows: the values of the chunk after this one are asked for. Past
// the last chunk that is the start of the next group of panels; past the last panel it is
// an address that is not used otherwise, hence an integer.
PYKV_INLINE void prefetch_after(const LinearTask& task, const std::byte* panel, std::uint32_t k) {
  const std::size_t row_bytes = (task.panel_bytes - task.values_offset) / task.cols;  // 16 elements
  const bool last = k + kTileDepth >= task.cols;
  auto from = reinterpret_cast<std::uintptr_t>(panel) + task.values_offset;
  from += last ? kTilePanels * task.panel_bytes : (k + kTileDepth) * row_bytes;
  for (std::size_t at = 0; at < kTileDepth * row_bytes; at += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(from + at));
}

void linear(const LinearTask& task) {
  constexpr std::size_t kOutStride = std::size_t{kTilePanels} * kPanelWidth;
  constexpr std::size_t kTileStride = std::size_t{kTileDepth} * kPanelWidth;
  alignas(64) float tile[kTilePanels * kTileStride];
  alignas(64) float sums[kLinearRows * kOutStride];
  const float* rows[kLinearRows];
  for (std::uint32_t r = 0; r < task.rows; ++r) rows[r] = task.in + r * task.in_stride;

  for (std::uint32_t channel = 0; channel < task.channels; channel += kOutStride) {
    const std::uint32_t left = task.channels - channel;
    const std::uint32_t width = left < kOutStride ? left : static_cast<std::uint32_t>(kOutStride);
    const std::uint32_t panels = (width + kPanelWidth - 1) / kPanelWidth;
    std::memset(sums, 0, task.rows * kOutStride * sizeof(float));
    for (std::uint32_t k = 0; k < task.cols; k += kTileDepth) {
      const std::uint32_t depth = task.cols - k < kTileDepth ? task.cols - k : kTileDepth;
      for (std::uint32_t p = 0; p < panels; ++p) {
        const std::byte* panel = task.panels + (channel / kPanelWidth + p) * task.panel_bytes;
        if (task.rows <= 8) prefetch_after(task, panel, k);
        decode_weight({task.type, panel, panel + task.fifth_offset, panel + task.values_offset}, k, depth,
                      tile + p * kTileStride);
      }
      multiply({tile, kTileStride, panels, depth, k, kOutStride}, rows, task.rows, sums);
    }
    for (std::uint32_t r = 0; r < task.rows; ++r)
      std::memcpy(task.out + r * task.out_stride + channel, sums + r * kOutStride, width * sizeof(float));
  }
}
