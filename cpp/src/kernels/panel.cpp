#include "kernels/panel.h"

#include <cstring>
#include <vector>

#include "kernels/k_panel.h"
#include "kernels/kernels.h"
#include "kernels/kv_cell.h"
#include "pykv/quant.h"

namespace pykv::kernels {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kBlock = 32;
constexpr std::size_t kScale = 2;  // bytes
constexpr std::size_t kWord = 4;

std::size_t round_up(std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// Columns of a panel: bf16 comes in pairs.
std::uint32_t padded(DType type, std::uint32_t cols) { return type == DType::bf16 ? cols + cols % 2 : cols; }

PanelLayout k_panel_layout(DType type, std::size_t cols) {
  PanelLayout layout;
  layout.fifth_offset = round_up(cols / quant::kKBlock * k_scale_place(type).bytes);
  layout.values_offset = layout.fifth_offset;
  layout.bytes = layout.values_offset + cols / kKUnit * k_unit_bytes(type);
  return layout;
}

CellPlace lane_place(DType type, std::uint32_t cols, std::byte* panel, std::uint32_t lane) {
  const PanelLayout layout = panel_layout(type, cols);
  const std::size_t unit = type == DType::f16 ? kScale : kWord;
  return {.type = type,
          .dim = padded(type, cols),
          .lane = true,
          .scales = panel + lane * kScale,
          .fifth = panel + layout.fifth_offset + lane * kWord,
          .values = panel + layout.values_offset + lane * unit,
          .scale_stride = kPanelWidth * kScale,
          .fifth_stride = kPanelWidth * kWord,
          .value_stride = kPanelWidth * unit};
}

void pack_k_lane(DType type, std::uint32_t cols, std::uint32_t lane, const std::byte* row, std::byte* panel) {
  std::byte* const values = panel + panel_layout(type, cols).values_offset;
  for (std::size_t block = 0; block < cols / quant::kKBlock; ++block, row += traits(type).block_bytes)
    store_k_block(type, quant::read_k_block(type, row), block, lane, panel, values);
}

void unpack_k_lane(DType type, const std::byte* panel, std::uint32_t lane, std::span<float> out) {
  const std::byte* const values =
      panel + panel_layout(type, static_cast<std::uint32_t>(out.size())).values_offset;
  for (std::size_t block = 0; block < out.size() / quant::kKBlock; ++block)
    quant::decode_k_block(type, load_k_block(type, block, lane, panel, values),
                          out.data() + block * quant::kKBlock);
}

}  // namespace

bool has_int8_form(DType type) {
  switch (type) {
    case DType::q8_0:
    case DType::q4_0:
    case DType::q4_1:
    case DType::q5_0:
    case DType::q5_1:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
      return true;
    default:
      return false;
  }
}

PanelLayout panel_layout(DType type, std::uint32_t cols) {
  if (is_k_type(type)) return k_panel_layout(type, cols);
  const std::size_t width = padded(type, cols);
  const std::size_t blocks = is_quantized(type) ? width / kBlock : 0;
  const std::size_t lane_bytes = is_quantized(type) ? blocks * code_bytes(type) : row_bytes(type, width);
  PanelLayout layout;
  layout.fifth_offset = round_up(blocks * kPanelWidth * kScale * (has_minimum(type) ? 2 : 1));
  layout.values_offset = layout.fifth_offset + (has_fifth_bits(type) ? blocks * kPanelWidth * kWord : 0);
  layout.bytes = layout.values_offset + round_up(lane_bytes * kPanelWidth);
  return layout;
}

void pack_panel(DType type, std::uint32_t rows, std::uint32_t cols, const std::byte* source,
                std::byte* panel) {
  const std::size_t stride = row_bytes(type, cols);
  std::vector<std::byte> row(row_bytes(type, padded(type, cols)));
  for (std::uint32_t lane = 0; lane < rows; ++lane, source += stride) {
    if (is_k_type(type)) {
      pack_k_lane(type, cols, lane, source, panel);
    } else {
      std::memcpy(row.data(), source, stride);
      store_cell(lane_place(type, cols, panel, lane), row.data());
    }
  }
}

void unpack_lane(DType type, const std::byte* panel, std::uint32_t lane, std::span<float> out) {
  if (is_k_type(type)) return unpack_k_lane(type, panel, lane, out);
  const auto cols = static_cast<std::uint32_t>(out.size());
  std::vector<std::byte> row(row_bytes(type, padded(type, cols)));
  load_cell(lane_place(type, cols, const_cast<std::byte*>(panel), lane), row.data());  // only read
  decode_row(type, std::span(row).first(row_bytes(type, cols)), out);
}

}  // namespace pykv::kernels
