#include "backend_cpu/linear_call.h"

#include <algorithm>
#include <string>

#include "pykv/errors.h"

namespace pykv::cpu {
namespace {

using kernels::kActivationBlock;
using kernels::kActivationRows;
using kernels::kLinearRows;
using kernels::kPanelWidth;

// Least work of a task, in bytes of weights times rows of a panel: some microseconds.
constexpr std::uint64_t kTaskBytes = 1U << 15;
// Weights of a task that meet several panels of rows: they stay in the second-level cache.
constexpr std::uint64_t kCachedBytes = 1U << 18;
constexpr std::uint32_t kTasksPerThread = 4;

std::uint32_t panels_of(const LinearPart& part) { return ceil_div(part.weight->rows, kPanelWidth); }

RowView some_of(RowView view, RowRange range) {
  view.data = view.row(range.begin);
  view.count = range.end - range.begin;
  return view;
}

}  // namespace

// Rows [first, first + rows) of a call; activations: their 8-bit form, if any part wants it.
struct LinearPlace::Chunk {
  std::uint32_t first = 0;
  std::uint32_t rows = 0;
  std::byte* activations = nullptr;
};

// How the outputs of a part are cut into tasks: spans of panels times blocks of rows.
struct LinearPlace::Cut {
  std::uint32_t span_panels = 1;
  std::uint32_t block_rows = 1;
  std::uint32_t row_blocks = 1;
  std::uint32_t first_task = 0;
  std::uint32_t tasks = 0;

  // `panels` and `threads` are those of the whole call.
  Cut(const LinearPart& part, std::uint32_t rows, std::uint32_t panels, std::uint32_t threads) {
    const std::uint32_t wanted = threads == 1 ? 1 : threads * kTasksPerThread;
    const std::uint32_t together = std::min(rows, kActivationRows);
    const std::uint32_t worthwhile = ceil_div(kTaskBytes, part.layout.bytes * together);
    const auto cached = static_cast<std::uint32_t>(kCachedBytes / part.layout.bytes);
    const std::uint32_t balanced = ceil_div(panels, wanted);
    if (part.weight->int8) {
      span_panels = rows > kActivationRows ? std::min(balanced, std::max(1U, cached)) : balanced;
      span_panels = std::max(span_panels, worthwhile);
      const std::uint32_t spans = ceil_div(panels, span_panels);
      const std::uint32_t blocks = std::min(ceil_div(rows, kActivationRows), ceil_div(wanted, spans));
      block_rows = ceil_div(ceil_div(rows, kActivationRows), blocks) * kActivationRows;
    } else {
      constexpr std::uint32_t kStep = 4;  // panels the kernel takes at once
      span_panels = ceil_div(std::max(balanced, worthwhile), kStep) * kStep;
      block_rows = kLinearRows;
    }
    row_blocks = ceil_div(rows, block_rows);
    tasks = ceil_div(panels_of(part), span_panels) * row_blocks;
  }
  Cut() = default;
};

LinearRows LinearRows::some(RowRange range) const {
  LinearRows result = *this;
  result.in = some_of(in, range);
  for (LinearPart& part : std::span(result.parts).first(count)) part.out = some_of(part.out, range);
  return result;
}

bool LinearCall::int8() const {
  return std::ranges::any_of(rows.all(), [](const LinearPart& part) { return part.weight->int8; });
}

void LinearCall::add(const Weight& weight, const RowView& out) {
  LinearPart& part = rows.parts[rows.count++];
  part.weight = &weight;
  part.out = out;
  part.type = weight.rows == 1 ? DType::f32 : weight.type;
  part.panels = weight.panels;
  part.layout = kernels::panel_layout(part.type, weight.cols);
  if (weight.rows > 1) return;
  std::vector<std::byte>& panel = panels.emplace_back(part.layout.bytes);
  kernels::pack_panel(DType::f32, 1, weight.cols, reinterpret_cast<const std::byte*>(weight.gain.data()),
                      panel.data());
  part.panels = panel.data();
}

void LinearWorker::reserve(const LinearCall& call, std::uint32_t rows) {
  if (!call.int8()) return;
  const std::size_t bytes = kernels::activation_bytes(rows, call.rows.in.width);
  if (activations.bytes() < bytes) {
    MappedMemory room = MappedMemory::allocate(bytes);
    if (room.data() == nullptr)
      throw OutOfMemory("[Backend.linear] the system has no room for " + std::to_string(bytes) + " bytes");
    activations = std::move(room);
  }
  if (call.precise.empty()) return;
  std::size_t width = call.rows.in.width;
  for (const LinearPart& part : call.rows.all()) width += part.out.width;
  rests.resize(std::max(rests.size(), width * std::min<std::size_t>(call.precise.size(), kActivationRows)));
}

// Each thread takes neighbours: what it asks for ahead of a task belongs to its next one.
template <class Body>
void LinearPlace::for_tasks(std::uint32_t tasks, const Body& body) const {
  if (threads_ != nullptr) {
    const std::uint32_t threads = threads_->threads();
    return threads_->run(tasks, [&](std::uint32_t index, std::uint32_t) {
      const std::uint32_t thread = index % threads;
      body(thread * (tasks / threads) + std::min(thread, tasks % threads) + index / threads);
    });
  }
  for (std::uint32_t task = 0; task < tasks; ++task) body(task);
}

void LinearPlace::quantize(const RowView& in, const Chunk& chunk) const {
  const std::uint32_t blocks = in.width / kActivationBlock;
  const std::uint32_t row_panels = ceil_div(chunk.rows, kActivationRows);
  // One task for a row or two; a panel of rows is cut by blocks, so that threads write apart.
  const std::uint32_t pieces = row_panels == 1 ? ceil_div(std::uint64_t{chunk.rows} * in.width, 4096) : 1;
  const std::uint32_t piece_blocks = ceil_div(blocks, pieces);
  for_tasks(row_panels * pieces, [&](std::uint32_t index) {
    const std::uint32_t row = index / pieces * kActivationRows;
    kernels::QuantizeTask task;
    task.in = in.row(chunk.first + row);
    task.in_stride = in.stride;
    task.rows = std::min(kActivationRows, chunk.rows - row);
    task.first_block = std::min(blocks, index % pieces * piece_blocks);
    task.last_block = std::min(blocks, task.first_block + piece_blocks);
    task.panel = chunk.activations + kernels::activation_bytes(row, in.width);
    kernels_.quantize(task);
  });
}

namespace {

// What both kinds of kernels are told alike.
template <class Task>
Task make_task(const LinearPart& part, std::uint32_t panel, std::uint32_t span_panels, std::uint32_t row,
               std::uint32_t rows) {
  Task task;
  task.type = part.type;
  task.panels = part.panels + panel * part.layout.bytes;
  task.panel_bytes = part.layout.bytes;
  task.fifth_offset = part.layout.fifth_offset;
  task.values_offset = part.layout.values_offset;
  task.channels = std::min(span_panels * kPanelWidth, part.weight->rows - panel * kPanelWidth);
  task.cols = part.weight->cols;
  task.rows = rows;
  task.out = part.out.row(row) + std::size_t{panel} * kPanelWidth;
  task.out_stride = part.out.stride;
  return task;
}

}  // namespace

void LinearPlace::run_task(const LinearPart& part, const Cut& cut, const Chunk& chunk, const RowView& in,
                           std::uint32_t index) const {
  const std::uint32_t panel = index / cut.row_blocks * cut.span_panels;
  const std::uint32_t row = index % cut.row_blocks * cut.block_rows;
  const std::uint32_t rows = std::min(cut.block_rows, chunk.rows - row);
  if (part.weight->int8) {
    auto task = make_task<kernels::Int8LinearTask>(part, panel, cut.span_panels, chunk.first + row, rows);
    task.activations = chunk.activations + kernels::activation_bytes(row, task.cols);
    kernels_.linear_int8(task);
  } else {
    auto task = make_task<kernels::LinearTask>(part, panel, cut.span_panels, chunk.first + row, rows);
    task.in = in.row(chunk.first + row);
    task.in_stride = in.stride;
    kernels_.linear(task);
  }
}

void LinearPlace::multiply(const LinearRows& rows) const {
  const std::span<const LinearPart> parts = rows.all();
  const std::uint32_t threads = threads_ == nullptr ? 1 : threads_->threads();
  std::uint32_t panels = 0;
  bool int8 = false;
  for (const LinearPart& part : parts) {
    panels += panels_of(part);
    int8 = int8 || part.weight->int8;
  }
  Chunk chunk;
  chunk.activations = worker_.activations.data();
  for (; chunk.first < rows.in.count; chunk.first += chunk.rows) {
    chunk.rows = std::min(rows.in.count - chunk.first, kLinearChunk);
    if (int8) quantize(rows.in, chunk);
    std::array<Cut, Backend::kMaxLinears> cuts;
    std::uint32_t tasks = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      cuts[i] = Cut(parts[i], chunk.rows, panels, threads);
      cuts[i].first_task = tasks;
      tasks += cuts[i].tasks;
    }
    for_tasks(tasks, [&](std::uint32_t index) {
      std::size_t i = parts.size() - 1;
      while (index < cuts[i].first_task) --i;
      run_task(parts[i], cuts[i], chunk, rows.in, index - cuts[i].first_task);
    });
  }
}

// What 8 bits left of the row: x - scale * q, into `rest`.
void LinearPlace::subtract_rounded(const float* x, std::uint32_t cols, float* rest) const {
  kernels::QuantizeTask task;
  task.in = x;
  task.in_stride = cols;
  task.rows = 1;
  task.last_block = cols / kActivationBlock;
  task.panel = worker_.activations.data();
  kernels_.quantize(task);
  for (std::uint32_t b = 0; b < task.last_block; ++b) {
    const kernels::ActivationBlock block(task.panel + b * kernels::activation_block_bytes(1), 1);
    for (std::uint32_t i = 0; i < kActivationBlock; ++i)
      rest[b * kActivationBlock + i] =
          x[b * kActivationBlock + i] - *block.scale * static_cast<float>(block.q[i]);
  }
}

// Adds to the outputs of some rows, at most a panel, what 8 bits left of their inputs, as another
// 8 bits.
void LinearPlace::add_rest(const LinearRows& rows, std::span<const std::uint32_t> precise) const {
  const auto count = static_cast<std::uint32_t>(precise.size());
  float* room = worker_.rests.data();
  const auto take = [&](std::uint32_t width) {
    const RowView view{room, width, count, width};
    room += std::size_t{width} * count;
    return view;
  };
  LinearRows rest;
  rest.in = take(rows.in.width);
  std::array<RowView, Backend::kMaxLinears> sums;
  for (const LinearPart& part : rows.all()) {
    if (!part.weight->int8) continue;
    sums[rest.count] = part.out;
    rest.parts[rest.count] = part;
    rest.parts[rest.count++].out = take(part.out.width);
  }
  if (rest.count == 0) return;
  for (std::uint32_t i = 0; i < count; ++i)
    subtract_rounded(rows.in.row(precise[i]), rows.in.width, rest.in.row(i));
  multiply(rest);
  for (std::size_t p = 0; p < rest.count; ++p)
    for (std::uint32_t i = 0; i < count; ++i)
      kernels_.add(sums[p].row(precise[i]), rest.parts[p].out.row(i), rest.parts[p].out.width);
}

void LinearPlace::run(const LinearCall& call, RowRange range) const {
  const LinearRows rows = call.rows.some(range);
  multiply(rows);
  std::array<std::uint32_t, kActivationRows> precise;
  std::size_t count = 0;
  for (const std::uint32_t row : call.precise) {
    if (row < range.begin || row >= range.end) continue;
    precise[count++] = row - range.begin;
    if (count < precise.size()) continue;
    add_rest(rows, precise);
    count = 0;
  }
  if (count != 0) add_rest(rows, std::span(precise).first(count));
}

}  // namespace pykv::cpu
