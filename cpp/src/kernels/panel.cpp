#include "kernels/panel.h"

#include <cstring>

#include "kernels/kernels.h"
#include "pykv/quant.h"

namespace pykv::kernels {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::uint32_t kBlock = 32;

std::size_t scale_bytes(DType type, std::uint32_t cols) {
  if (type == DType::q8_0) return std::size_t{cols} / kBlock * kPanelWidth * 2;
  if (type == DType::q4_1) return std::size_t{cols} / kBlock * kPanelWidth * 4;
  return 0;
}

std::size_t value_bits(DType type) {
  switch (type) {
    case DType::f32:
      return 32;
    case DType::f16:
      return 16;
    case DType::q8_0:
      return 8;
    default:
      return 4;
  }
}

float half_at(const std::byte* base, std::size_t index) {
  std::uint16_t bits;
  std::memcpy(&bits, base + 2 * index, sizeof bits);
  return f32_from_f16(bits);
}

void pack_plain(std::size_t width, std::uint32_t cols, const std::byte* row, std::uint32_t lane,
                std::byte* values) {
  for (std::size_t k = 0; k < cols; ++k)
    std::memcpy(values + (k * kPanelWidth + lane) * width, row + k * width, width);
}

// Words of four bytes: the block's own bytes, in their order.
void pack_words(std::uint32_t words, const std::byte* from, std::uint32_t lane, std::byte* values) {
  for (std::size_t w = 0; w < words; ++w) std::memcpy(values + (w * kPanelWidth + lane) * 4, from + w * 4, 4);
}

void pack_q8_0(std::uint32_t cols, const std::byte* row, std::uint32_t lane, std::byte* scales,
               std::byte* values) {
  for (std::size_t b = 0; b < cols / kBlock; ++b, row += 34) {
    std::memcpy(scales + (b * kPanelWidth + lane) * 2, row, 2);
    std::byte biased[kBlock];
    for (std::size_t i = 0; i < kBlock; ++i) biased[i] = row[2 + i] ^ std::byte{kByteBias};
    pack_words(kBlock / 4, biased, lane, values + b * kBlock * kPanelWidth);
  }
}

void pack_q4_1(std::uint32_t cols, const std::byte* row, std::uint32_t lane, std::byte* scales,
               std::byte* values) {
  for (std::size_t b = 0; b < cols / kBlock; ++b, row += 20) {
    std::memcpy(scales + (b * 2 * kPanelWidth + lane) * 2, row, 2);
    std::memcpy(scales + ((b * 2 + 1) * kPanelWidth + lane) * 2, row + 2, 2);
    pack_words(kBlock / 8, row + 4, lane, values + b * kBlock / 2 * kPanelWidth);
  }
}

std::uint32_t byte_at(const std::byte* values, std::size_t word, std::uint32_t lane, std::size_t byte) {
  return static_cast<std::uint32_t>(values[(word * kPanelWidth + lane) * 4 + byte]);
}

float unpack_q8_0(const std::byte* panel, const std::byte* values, std::size_t k, std::uint32_t lane) {
  const auto biased = static_cast<int>(byte_at(values, k / 4, lane, k % 4));
  return half_at(panel, k / kBlock * kPanelWidth + lane) * static_cast<float>(biased - kByteBias);
}

float unpack_q4_1(const std::byte* panel, const std::byte* values, std::size_t k, std::uint32_t lane) {
  const std::size_t in_half = k % (kBlock / 2);
  const std::uint32_t byte = byte_at(values, k / kBlock * 4 + in_half / 4, lane, in_half % 4);
  const std::uint32_t nibble = k % kBlock < kBlock / 2 ? byte & 15U : byte >> 4;
  const std::size_t scale = k / kBlock * 2 * kPanelWidth + lane;
  return half_at(panel, scale) * static_cast<float>(nibble) + half_at(panel, scale + kPanelWidth);
}

}  // namespace

bool is_panel_type(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::q8_0 || type == DType::q4_1;
}

bool has_int8_form(DType type) { return type == DType::q8_0 || type == DType::q4_1; }

PanelLayout panel_layout(DType type, std::uint32_t cols) {
  const auto round_up = [](std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; };
  PanelLayout layout;
  layout.values_offset = round_up(scale_bytes(type, cols));
  layout.bytes = layout.values_offset + round_up(std::size_t{cols} * kPanelWidth * value_bits(type) / 8);
  return layout;
}

void pack_panel(DType type, std::uint32_t rows, std::uint32_t cols, const std::byte* source,
                std::byte* panel) {
  std::byte* const values = panel + panel_layout(type, cols).values_offset;
  const std::size_t stride = row_bytes(type, cols);
  for (std::uint32_t lane = 0; lane < rows; ++lane, source += stride) {
    switch (type) {
      case DType::q8_0:
        pack_q8_0(cols, source, lane, panel, values);
        break;
      case DType::q4_1:
        pack_q4_1(cols, source, lane, panel, values);
        break;
      default:
        pack_plain(value_bits(type) / 8, cols, source, lane, values);
        break;
    }
  }
}

void unpack_lane(DType type, const std::byte* panel, std::uint32_t lane, std::span<float> out) {
  const std::byte* const values =
      panel + panel_layout(type, static_cast<std::uint32_t>(out.size())).values_offset;
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::size_t at = k * kPanelWidth + lane;
    switch (type) {
      case DType::f32:
        std::memcpy(&out[k], values + at * 4, 4);
        break;
      case DType::f16:
        out[k] = half_at(values, at);
        break;
      case DType::q8_0:
        out[k] = unpack_q8_0(panel, values, k, lane);
        break;
      default:
        out[k] = unpack_q4_1(panel, values, k, lane);
        break;
    }
  }
}

}  // namespace pykv::kernels
