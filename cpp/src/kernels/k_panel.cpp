#include "kernels/k_panel.h"

#include <cstring>

namespace pykv::kernels {
namespace {

using quant::KBlock;
using quant::KFormat;
using quant::kKBlock;

// Word of lane `lane` in row `row`.
std::uint32_t load_word(const std::byte* rows, std::size_t row, std::uint32_t lane) {
  std::uint32_t word;
  std::memcpy(&word, rows + (row * kPanelWidth + lane) * sizeof word, sizeof word);
  return word;
}
void store_word(std::byte* rows, std::size_t row, std::uint32_t lane, std::uint32_t word) {
  std::memcpy(rows + (row * kPanelWidth + lane) * sizeof word, &word, sizeof word);
}

// Part of the codes of 32 elements: `bits` of each from bit `from` on, in as many rows.
struct CodePart {
  unsigned from, bits;

  void store(const std::uint8_t* codes, std::uint32_t lane, std::byte* rows) const {
    const unsigned mask = (1U << bits) - 1U;
    for (unsigned row = 0; row < bits; ++row) {
      std::uint32_t word = 0;
      for (unsigned j = row; j < 8; j += bits)
        for (unsigned i = 0; i < 4; ++i)
          word |= ((codes[4 * j + i] >> from) & mask) << (8 * i + j / bits * bits);
      store_word(rows, row, lane, word);
    }
  }
  void load(const std::byte* rows, std::uint32_t lane, std::uint8_t* codes) const {
    const unsigned mask = (1U << bits) - 1U;
    for (unsigned row = 0; row < bits; ++row) {
      const std::uint32_t word = load_word(rows, row, lane);
      for (unsigned j = row; j < 8; j += bits)
        for (unsigned i = 0; i < 4; ++i)
          codes[4 * j + i] |= static_cast<std::uint8_t>(((word >> (8 * i + j / bits * bits)) & mask) << from);
    }
  }
};

// Small integers of the groups, as four bits of words or as bytes.
template <class Small>
void store_small(DType type, const Small& small, std::uint32_t lane, std::byte* to) {
  if (type != DType::q2_k) {
    for (std::size_t g = 0; g < quant::k_format(type).groups; ++g)
      to[g * kPanelWidth + lane] = static_cast<std::byte>(small[g]);
    return;
  }
  for (std::size_t row = 0; row < 2; ++row) {
    std::uint32_t word = 0;
    for (std::size_t g = 0; g < 8; ++g) word |= static_cast<std::uint32_t>(small[8 * row + g]) << (4 * g);
    store_word(to, row, lane, word);
  }
}
template <class Small>
void load_small(DType type, const std::byte* from, std::uint32_t lane, Small& small) {
  for (std::size_t g = 0; g < quant::k_format(type).groups; ++g) {
    const std::uint32_t value = type == DType::q2_k
                                    ? (load_word(from, g / 8, lane) >> (g % 8 * 4)) & 15U
                                    : static_cast<std::uint32_t>(from[g * kPanelWidth + lane]);
    small[g] = static_cast<std::int8_t>(static_cast<std::uint8_t>(value));
  }
}

}  // namespace

void store_k_block(DType type, const KBlock& block, std::size_t index, std::uint32_t lane, std::byte* scales,
                   std::byte* values) {
  const KFormat format = quant::k_format(type);
  const KScalePlace place = k_scale_place(type);
  const auto low = static_cast<unsigned>(k_low_bits(type));
  const CodePart lower{0, low}, upper{low, static_cast<unsigned>(format.bits) - low};
  scales += index * place.bytes;
  std::memcpy(scales + lane * sizeof block.d, &block.d, sizeof block.d);
  store_small(type, block.scales, lane, scales + place.scales);
  if (format.minimum) {
    std::memcpy(scales + (kPanelWidth + lane) * sizeof block.dmin, &block.dmin, sizeof block.dmin);
    store_small(type, block.minimums, lane, scales + place.minimums);
  }
  values += index * (kKBlock / kKUnit) * k_unit_bytes(type);
  for (std::size_t i = 0; i < kKBlock; i += kKUnit, values += k_unit_bytes(type)) {
    lower.store(block.codes.data() + i, lane, values);
    upper.store(block.codes.data() + i, lane, values + low * kPanelWidth * sizeof(std::uint32_t));
  }
}

KBlock load_k_block(DType type, std::size_t index, std::uint32_t lane, const std::byte* scales,
                    const std::byte* values) {
  KBlock block;
  const KFormat format = quant::k_format(type);
  const KScalePlace place = k_scale_place(type);
  const auto low = static_cast<unsigned>(k_low_bits(type));
  const CodePart lower{0, low}, upper{low, static_cast<unsigned>(format.bits) - low};
  scales += index * place.bytes;
  std::memcpy(&block.d, scales + lane * sizeof block.d, sizeof block.d);
  load_small(type, scales + place.scales, lane, block.scales);
  if (format.minimum) {
    std::memcpy(&block.dmin, scales + (kPanelWidth + lane) * sizeof block.dmin, sizeof block.dmin);
    load_small(type, scales + place.minimums, lane, block.minimums);
  }
  values += index * (kKBlock / kKUnit) * k_unit_bytes(type);
  for (std::size_t i = 0; i < kKBlock; i += kKUnit, values += k_unit_bytes(type)) {
    lower.load(values, lane, block.codes.data() + i);
    upper.load(values + low * kPanelWidth * sizeof(std::uint32_t), lane, block.codes.data() + i);
  }
  return block;
}

}  // namespace pykv::kernels
