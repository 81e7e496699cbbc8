#include <algorithm>
#include <cstring>
#include <limits>

#include "backend_cpu/impl.h"
#include "pykv/quant.h"

namespace pykv {
namespace {

using cpu::refuse;
using kernels::kPanelWidth;

constexpr std::uint32_t kMaxCols = 1U << 24;
// Enough multiply-adds for a task to be worth handing over (tens of microseconds).
constexpr std::uint64_t kTaskWork = 1U << 18;

std::uint32_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint32_t>((a + b - 1) / b);
}

void check_shape(DType type, std::uint32_t rows, std::uint32_t cols, std::size_t bytes) {
  const std::string shape = std::to_string(rows) + " x " + std::to_string(cols) + " of " + traits(type).name;
  if (!kernels::is_panel_type(type))
    throw Unsupported("[Backend.create_weight] type " + std::string(traits(type).name) +
                      " is not supported; use f32, f16, q8_0 or q4_1");
  if (rows == 0 || cols == 0 || cols > kMaxCols)
    refuse("create_weight",
           shape + ": needs at least 1 row and 1 to " + std::to_string(kMaxCols) + " columns");
  const std::size_t expected = row_bytes(type, cols) * rows;
  if (bytes != expected)
    refuse("create_weight",
           shape + " takes " + std::to_string(expected) + " bytes, given are " + std::to_string(bytes));
}

// How the outputs of a linear layer are cut into tasks: blocks of rows times spans of
// channels. Bits do not depend on it.
struct LinearCut {
  std::uint32_t row_blocks = 1;
  std::uint32_t spans = 1;
  std::uint32_t span_panels = 4;
};

LinearCut cut_linear(const cpu::Weight& weight, std::uint32_t rows, std::uint32_t threads) {
  constexpr std::uint32_t kStep = 4;  // panels the kernel takes at once
  const std::uint32_t steps = ceil_div(weight.rows, kStep * kPanelWidth);
  const std::uint64_t step_work =
      std::uint64_t{kStep} * kPanelWidth * weight.cols * std::min(rows, kernels::kLinearRows);
  const std::uint32_t worthwhile = ceil_div(kTaskWork, step_work);
  const std::uint32_t balanced = std::max(1U, steps / (threads * 4));
  LinearCut cut;
  cut.row_blocks = ceil_div(rows, kernels::kLinearRows);
  cut.span_panels = kStep * std::min(std::max(1U, steps / threads), std::max(worthwhile, balanced));
  cut.spans = ceil_div(ceil_div(weight.rows, kPanelWidth), cut.span_panels);
  return cut;
}

}  // namespace

const cpu::Weight& cpu::State::weight(const char* method, WeightId id) const {
  const auto found = weights.find(id.value);
  if (found == weights.end()) refuse(method, "no weight has the handle " + std::to_string(id.value));
  return found->second;
}

WeightId Backend::create_weight(DType type, std::uint32_t rows, std::uint32_t cols,
                                std::span<const std::byte> bytes) {
  const auto call = impl_->enter();
  check_shape(type, rows, cols, bytes.size());
  cpu::Weight weight;
  weight.type = type;
  weight.rows = rows;
  weight.cols = cols;
  weight.layout = kernels::panel_layout(type, cols);
  const std::uint32_t panels = rows == 1 ? 0 : ceil_div(rows, kPanelWidth);
  const std::size_t size = rows == 1 ? cols * sizeof(float) : panels * weight.layout.bytes;
  if (rows == 1) {
    weight.gain.resize(cols);
    decode_row(type, bytes, weight.gain);
  } else {
    weight.panels = impl_->weight_memory.take(size);
    if (weight.panels == nullptr)
      throw OutOfMemory("[Backend.create_weight] the system has no room for " + std::to_string(size) +
                        " bytes");
    impl_->threads->run(panels, [&](std::uint32_t panel, std::uint32_t) {
      const std::uint32_t first = panel * kPanelWidth;
      kernels::pack_panel(type, std::min(kPanelWidth, rows - first), cols,
                          bytes.data() + first * row_bytes(type, cols),
                          weight.panels + panel * weight.layout.bytes);
    });
  }
  const WeightId id{impl_->next_id("create_weight")};
  impl_->weight_bytes += size;
  impl_->weights.emplace(id.value, std::move(weight));
  return id;
}

std::size_t Backend::weight_bytes() const {
  const auto call = impl_->enter();
  return impl_->weight_bytes;
}

void Backend::embed(WeightId table, std::span<const Token> tokens, Rows out) {
  const auto call = impl_->enter();
  const cpu::Weight& weight = impl_->weight("embed", table);
  const cpu::RowView view = impl_->view("embed", "out", out);
  cpu::check_width("embed", "out", view, weight.cols);
  cpu::check_count("embed", "out", view, tokens.size());
  for (const Token token : tokens)
    if (token < 0 || static_cast<std::uint32_t>(token) >= weight.rows)
      refuse("embed", "token " + std::to_string(token) + "; the table has rows 0 to " +
                          std::to_string(weight.rows - 1));
  impl_->threads->run(view.count, [&](std::uint32_t i, std::uint32_t) {
    const auto token = static_cast<std::uint32_t>(tokens[i]);
    if (weight.rows == 1) {
      std::memcpy(view.row(i), weight.gain.data(), weight.cols * sizeof(float));
    } else {
      kernels::unpack_lane(weight.type, weight.panels + token / kPanelWidth * weight.layout.bytes,
                           token % kPanelWidth, {view.row(i), weight.cols});
    }
  });
}

void Backend::linear(WeightId id, Rows in, Rows out) {
  const auto call = impl_->enter();
  const cpu::Weight& weight = impl_->weight("linear", id);
  const cpu::RowView x = impl_->view("linear", "in", in);
  const cpu::RowView y = impl_->view("linear", "out", out);
  cpu::check_width("linear", "in", x, weight.cols);
  cpu::check_width("linear", "out", y, weight.rows);
  cpu::check_count("linear", "out", y, x.count);
  cpu::check_apart("linear", in, out, false);
  if (x.count == 0) return;

  kernels::LinearTask whole;
  whole.type = weight.type;
  whole.panels = weight.panels;
  whole.panel_bytes = weight.layout.bytes;
  whole.values_offset = weight.layout.values_offset;
  whole.cols = weight.cols;
  std::vector<std::byte> panel;
  if (weight.rows == 1) {  // kept as a gain: made into a panel for this call
    const kernels::PanelLayout layout = kernels::panel_layout(DType::f32, weight.cols);
    panel.resize(layout.bytes);
    kernels::pack_panel(DType::f32, 1, weight.cols, reinterpret_cast<const std::byte*>(weight.gain.data()),
                        panel.data());
    whole.type = DType::f32;
    whole.panels = panel.data();
    whole.panel_bytes = layout.bytes;
    whole.values_offset = layout.values_offset;
  }
  const LinearCut cut = cut_linear(weight, x.count, impl_->threads->threads());
  // Neighbouring tasks share channels, so that a decoded span stays in the cache.
  impl_->threads->run(cut.spans * cut.row_blocks, [&](std::uint32_t index, std::uint32_t) {
    const std::uint32_t first = index / cut.row_blocks * cut.span_panels;
    const std::uint32_t row = index % cut.row_blocks * kernels::kLinearRows;
    kernels::LinearTask task = whole;
    task.panels += first * task.panel_bytes;
    task.channels = std::min(cut.span_panels * kPanelWidth, weight.rows - first * kPanelWidth);
    task.rows = std::min(kernels::kLinearRows, x.count - row);
    task.in = x.row(row);
    task.in_stride = x.stride;
    task.out = y.row(row) + first * kPanelWidth;
    task.out_stride = y.stride;
    impl_->kernels->linear(task);
  });
}

}  // namespace pykv
