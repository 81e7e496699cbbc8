#include <algorithm>
#include <array>
#include <vector>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

using cpu::ceil_div;
using cpu::refuse;
using kernels::kActivationBlock;
using kernels::kActivationRows;
using kernels::kLinearRows;
using kernels::kPanelWidth;

// Rows that are multiplied in one go: bounds the memory of their 8-bit form.
constexpr std::uint32_t kMaxRowsAtOnce = 512;
// Least work of a task, in bytes of weights times rows of a panel: some microseconds.
constexpr std::uint64_t kTaskBytes = 1U << 15;
// Weights of a task that meet several panels of rows: they stay in the second-level cache.
constexpr std::uint64_t kCachedBytes = 1U << 18;
constexpr std::uint32_t kTasksPerThread = 4;

// One matrix of a call, and how its outputs are cut into tasks: spans of panels times blocks
// of rows. Bits do not depend on it.
struct Part {
  const cpu::Weight* weight = nullptr;
  cpu::RowView out;
  DType type = DType::f32;  // of the panels
  const std::byte* panels = nullptr;
  kernels::PanelLayout layout;
  std::vector<std::byte> own_panel;  // of a weight that is kept as a vector
  std::uint32_t span_panels = 1;
  std::uint32_t block_rows = 1;
  std::uint32_t row_blocks = 1;
  std::uint32_t first_task = 0;
  std::uint32_t tasks = 0;
};

struct Call {
  cpu::RowView in;
  std::array<Part, Backend::kMaxLinears> parts;
  std::size_t count = 0;
  std::uint32_t tasks = 0;

  std::span<Part> all() { return std::span(parts).first(count); }
};

void find_panels(Part& part) {
  const cpu::Weight& weight = *part.weight;
  part.type = weight.rows == 1 ? DType::f32 : weight.type;
  part.panels = weight.panels;
  part.layout = kernels::panel_layout(part.type, weight.cols);
  if (weight.rows > 1) return;
  part.own_panel.resize(part.layout.bytes);
  kernels::pack_panel(DType::f32, 1, weight.cols, reinterpret_cast<const std::byte*>(weight.gain.data()),
                      part.own_panel.data());
  part.panels = part.own_panel.data();
}

std::uint32_t panels_of(const Part& part) { return ceil_div(part.weight->rows, kPanelWidth); }

// `panels` and `threads` are those of the whole call.
void cut(Part& part, std::uint32_t rows, std::uint32_t panels, std::uint32_t threads) {
  const std::uint32_t wanted = threads == 1 ? 1 : threads * kTasksPerThread;
  const std::uint32_t together = std::min(rows, kActivationRows);
  const std::uint32_t worthwhile = ceil_div(kTaskBytes, part.layout.bytes * together);
  const auto cached = static_cast<std::uint32_t>(kCachedBytes / part.layout.bytes);
  const std::uint32_t balanced = ceil_div(panels, wanted);
  if (part.weight->int8) {
    part.span_panels = rows > kActivationRows ? std::min(balanced, std::max(1U, cached)) : balanced;
    part.span_panels = std::max(part.span_panels, worthwhile);
    const std::uint32_t spans = ceil_div(panels, part.span_panels);
    const std::uint32_t blocks = std::min(ceil_div(rows, kActivationRows), ceil_div(wanted, spans));
    part.block_rows = ceil_div(ceil_div(rows, kActivationRows), blocks) * kActivationRows;
  } else {
    constexpr std::uint32_t kStep = 4;  // panels the kernel takes at once
    part.span_panels = ceil_div(std::max(balanced, worthwhile), kStep) * kStep;
    part.block_rows = kLinearRows;
  }
  part.row_blocks = ceil_div(rows, part.block_rows);
  part.tasks = ceil_div(panels_of(part), part.span_panels) * part.row_blocks;
}

void cut_all(Call& call, std::uint32_t rows, std::uint32_t threads) {
  std::uint32_t panels = 0;
  for (const Part& part : call.all()) panels += panels_of(part);
  call.tasks = 0;
  for (Part& part : call.all()) {
    cut(part, rows, panels, threads);
    part.first_task = call.tasks;
    call.tasks += part.tasks;
  }
}

// The 8-bit form of rows [first, first + rows), in `panels`.
void quantize_rows(cpu::State& state, const cpu::RowView& in, std::uint32_t first, std::uint32_t rows,
                   std::byte* panels) {
  const std::uint32_t blocks = in.width / kActivationBlock;
  const std::uint32_t row_panels = ceil_div(rows, kActivationRows);
  // One task for a row or two; a panel of rows is cut by blocks, so that threads write apart.
  const std::uint32_t pieces = row_panels == 1 ? ceil_div(std::uint64_t{rows} * in.width, 4096) : 1;
  const std::uint32_t piece_blocks = ceil_div(blocks, pieces);
  state.threads->run(row_panels * pieces, [&](std::uint32_t index, std::uint32_t) {
    const std::uint32_t row = index / pieces * kActivationRows;
    kernels::QuantizeTask task;
    task.in = in.row(first + row);
    task.in_stride = in.stride;
    task.rows = std::min(kActivationRows, rows - row);
    task.first_block = std::min(blocks, index % pieces * piece_blocks);
    task.last_block = std::min(blocks, task.first_block + piece_blocks);
    task.panel = panels + kernels::activation_bytes(row, in.width);
    state.kernels->quantize(task);
  });
}

// Rows [first, first + rows) of a call; activations: their 8-bit form, if any part wants it.
struct Chunk {
  std::uint32_t first = 0;
  std::uint32_t rows = 0;
  std::byte* activations = nullptr;
};

template <class Task>
Task make_task(const Part& part, const Chunk& chunk, std::uint32_t index) {
  const std::uint32_t panel = index / part.row_blocks * part.span_panels;
  const std::uint32_t row = index % part.row_blocks * part.block_rows;
  Task task;
  task.type = part.type;
  task.panels = part.panels + panel * part.layout.bytes;
  task.panel_bytes = part.layout.bytes;
  task.fifth_offset = part.layout.fifth_offset;
  task.values_offset = part.layout.values_offset;
  task.channels = std::min(part.span_panels * kPanelWidth, part.weight->rows - panel * kPanelWidth);
  task.cols = part.weight->cols;
  task.rows = std::min(part.block_rows, chunk.rows - row);
  task.out = part.out.row(chunk.first + row) + std::size_t{panel} * kPanelWidth;
  task.out_stride = part.out.stride;
  return task;
}

void run_task(const kernels::Kernels& kernels, const Call& call, const Part& part, const Chunk& chunk,
              std::uint32_t index) {
  const std::uint32_t row = index % part.row_blocks * part.block_rows;
  if (part.weight->int8) {
    auto task = make_task<kernels::Int8LinearTask>(part, chunk, index);
    task.activations = chunk.activations + kernels::activation_bytes(row, task.cols);
    kernels.linear_int8(task);
  } else {
    auto task = make_task<kernels::LinearTask>(part, chunk, index);
    task.in = call.in.row(chunk.first + row);
    task.in_stride = call.in.stride;
    kernels.linear(task);
  }
}

// Room for the 8-bit form of `rows` rows; kept, and grown when more is needed.
std::byte* activation_room(cpu::State& state, std::uint32_t rows, std::uint32_t cols) {
  const std::size_t bytes = kernels::activation_bytes(rows, cols);
  if (state.activations.bytes() < bytes) {
    cpu::MappedMemory room = cpu::MappedMemory::allocate(bytes);
    if (room.data() == nullptr)
      throw OutOfMemory("[Backend.linear] the system has no room for " + std::to_string(bytes) + " bytes");
    state.activations = std::move(room);
  }
  return state.activations.data();
}

void run_call(cpu::State& state, Call& call) {
  bool int8 = false;
  for (const Part& part : call.all()) int8 = int8 || part.weight->int8;
  Chunk chunk;
  if (int8)
    chunk.activations = activation_room(state, std::min(call.in.count, kMaxRowsAtOnce), call.in.width);
  for (; chunk.first < call.in.count; chunk.first += chunk.rows) {
    chunk.rows = std::min(call.in.count - chunk.first, kMaxRowsAtOnce);
    if (int8) quantize_rows(state, call.in, chunk.first, chunk.rows, chunk.activations);
    cut_all(call, chunk.rows, state.threads->threads());
    state.threads->run(call.tasks, [&](std::uint32_t index, std::uint32_t) {
      std::size_t i = call.count - 1;
      while (index < call.parts[i].first_task) --i;
      run_task(*state.kernels, call, call.parts[i], chunk, index - call.parts[i].first_task);
    });
  }
}

// What 8 bits left of the row: x - scale * q, into `rest`.
void subtract_rounded(cpu::State& state, const float* x, std::uint32_t cols, float* rest) {
  kernels::QuantizeTask task;
  task.in = x;
  task.in_stride = cols;
  task.rows = 1;
  task.last_block = cols / kActivationBlock;
  task.panel = activation_room(state, 1, cols);
  state.kernels->quantize(task);
  for (std::uint32_t b = 0; b < task.last_block; ++b) {
    const kernels::ActivationBlock block(task.panel + b * kernels::activation_block_bytes(1), 1);
    for (std::uint32_t i = 0; i < kActivationBlock; ++i)
      rest[b * kActivationBlock + i] =
          x[b * kActivationBlock + i] - *block.scale * static_cast<float>(block.q[i]);
  }
}

// Adds to the outputs of some rows, fewer than a panel, what 8 bits left of their inputs, as
// another 8 bits.
void add_rest(cpu::State& state, const Call& call, std::span<const std::uint32_t> rows) {
  Call rest;
  std::size_t width = call.in.width;
  std::array<cpu::RowView, Backend::kMaxLinears> sums;
  for (std::size_t i = 0; i < call.count; ++i) {
    if (!call.parts[i].weight->int8) continue;
    sums[rest.count] = call.parts[i].out;
    rest.parts[rest.count++] = call.parts[i];
    width += call.parts[i].out.width;
  }
  if (rest.count == 0) return;
  const auto count = static_cast<std::uint32_t>(rows.size());
  if (state.rests.size() < width * count) state.rests.resize(width * count);
  float* room = state.rests.data();
  const auto take = [&](std::uint32_t row_width) {
    const cpu::RowView view{room, row_width, count, row_width};
    room += std::size_t{row_width} * count;
    return view;
  };
  rest.in = take(call.in.width);
  for (std::uint32_t i = 0; i < count; ++i)
    subtract_rounded(state, call.in.row(rows[i]), call.in.width, rest.in.row(i));
  for (Part& part : rest.all()) part.out = take(part.weight->rows);
  run_call(state, rest);
  for (std::size_t p = 0; p < rest.count; ++p)
    for (std::uint32_t i = 0; i < count; ++i)
      state.kernels->add(sums[p].row(rows[i]), rest.parts[p].out.row(i), rest.parts[p].out.width);
}

}  // namespace

void Backend::linear(WeightId weight, Rows in, Rows out) { linear({&weight, 1}, in, {&out, 1}); }

void Backend::linear(std::span<const WeightId> weights, Rows in, std::span<const Rows> outs,
                     std::span<const std::uint32_t> precise) {
  const auto locked = impl_->enter();
  if (weights.empty() || weights.size() > kMaxLinears || weights.size() != outs.size())
    refuse("linear", std::to_string(weights.size()) + " weights and " + std::to_string(outs.size()) +
                         " outputs; needed are as many of each, 1 to " + std::to_string(kMaxLinears));
  Call call;
  call.in = impl_->view("linear", "in", in);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    Part& part = call.parts[call.count++];
    part.weight = &impl_->weight("linear", weights[i]);
    part.out = impl_->view("linear", "out", outs[i]);
    cpu::check_width("linear", "in", call.in, part.weight->cols);
    cpu::check_width("linear", "out", part.out, part.weight->rows);
    cpu::check_count("linear", "out", part.out, call.in.count);
    cpu::check_apart("linear", in, outs[i], false);
    for (std::size_t j = 0; j < i; ++j) cpu::check_apart("linear", outs[j], outs[i], false);
    find_panels(part);
  }
  for (const std::uint32_t row : precise)
    if (row >= call.in.count)
      refuse("linear",
             "row " + std::to_string(row) + " of " + std::to_string(call.in.count) + " is to be precise");
  if (call.in.count != 0) run_call(*impl_, call);
  for (; !precise.empty(); precise = precise.subspan(std::min<std::size_t>(precise.size(), kActivationRows)))
    add_rest(*impl_, call, precise.first(std::min<std::size_t>(precise.size(), kActivationRows)));
}

}  // namespace pykv
