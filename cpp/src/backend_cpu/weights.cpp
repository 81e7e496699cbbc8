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

void check_shape(DType type, std::uint32_t rows, std::uint32_t cols, std::size_t bytes) {
  const std::string shape = std::to_string(rows) + " x " + std::to_string(cols) + " of " + traits(type).name;
  if (rows == 0 || cols == 0 || cols > kMaxCols)
    refuse("create_weight",
           shape + ": needs at least 1 row and 1 to " + std::to_string(kMaxCols) + " columns");
  const std::size_t expected = row_bytes(type, cols) * rows;
  if (bytes != expected)
    refuse("create_weight",
           shape + " takes " + std::to_string(expected) + " bytes, given are " + std::to_string(bytes));
}

}  // namespace

const cpu::Weight& cpu::State::weight(const char* method, WeightId id) const {
  const auto found = weights.find(id.value);
  if (found == weights.end()) refuse(method, "no weight has the handle " + std::to_string(id.value));
  return found->second;
}

WeightId Backend::create_weight(DType type, std::uint32_t rows, std::uint32_t cols,
                                std::span<const std::byte> bytes, Precision precision) {
  const auto call = impl_->enter();
  check_shape(type, rows, cols, bytes.size());
  cpu::Weight weight;
  weight.type = type;
  weight.rows = rows;
  weight.cols = cols;
  weight.int8 = precision != Precision::exact && rows > 1 && kernels::has_int8_form(type);
  weight.layout = kernels::panel_layout(type, cols);
  const std::uint32_t panels = rows == 1 ? 0 : cpu::ceil_div(rows, kPanelWidth);
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

}  // namespace pykv
