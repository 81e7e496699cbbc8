#include "kernels/kv_cell.h"

#include <cstring>

namespace pykv::kernels {
namespace {

constexpr std::size_t kBlock = 32;
constexpr std::size_t kScale = 2;  // bytes
constexpr std::size_t kWord = 4;
constexpr std::uint32_t kByteBias = 0x80808080;  // 128 for each byte of a word

// f16 has one element in a unit of values, everything else what fits into a word.
std::size_t unit_bytes(DType type) { return type == DType::f16 ? kScale : kWord; }

// Fifth bits of a lane: element 4 g + j, bit 4 g + j of the row, is bit 8 j + g.
std::uint32_t fifth_to_lane(std::uint32_t row) {
  std::uint32_t lane = 0;
  for (unsigned g = 0; g < 8; ++g) {
    const std::uint32_t four = row >> (4 * g) & 15U;
    lane |= (four * 0x00204081U & 0x01010101U) << g;  // bit j goes to 8 j
  }
  return lane;
}

std::uint32_t fifth_from_lane(std::uint32_t lane) {
  std::uint32_t row = 0;
  for (unsigned g = 0; g < 8; ++g) {
    const std::uint32_t four = lane >> g & 0x01010101U;
    row |= (four * 0x01020408U >> 24 & 15U) << (4 * g);  // bit 8 j goes to j
  }
  return row;
}

// `count` units from row to place or back; both move on.
template <bool to_cell, std::size_t unit>
void move(std::byte*& row, std::byte*& place, std::size_t stride, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, row += unit, place += stride) {
    if constexpr (to_cell) {
      std::memcpy(place, row, unit);
    } else {
      std::memcpy(row, place, unit);
    }
  }
}

// Words that `change` turns into what the other side has.
template <bool to_cell, class Change>
void move_changed(std::byte*& row, std::byte*& place, std::size_t stride, std::size_t count, Change change) {
  for (std::size_t i = 0; i < count; ++i, row += kWord, place += stride) {
    std::uint32_t word;
    std::memcpy(&word, to_cell ? row : place, kWord);
    word = change(word);
    std::memcpy(to_cell ? place : row, &word, kWord);
  }
}

template <bool to_cell>
void move_blocks(CellPlace p, std::byte* row) {
  const std::size_t scales = has_minimum(p.type) ? 2 : 1;
  const std::size_t words = code_bytes(p.type) / kWord;
  for (std::size_t block = 0; block < p.dim / kBlock; ++block) {
    move<to_cell, kScale>(row, p.scales, p.scale_stride, scales);
    if (has_fifth_bits(p.type)) {
      if (p.lane) {
        move_changed<to_cell>(row, p.fifth, p.fifth_stride, 1, to_cell ? fifth_to_lane : fifth_from_lane);
      } else {
        move<to_cell, kWord>(row, p.fifth, p.fifth_stride, 1);
      }
    }
    if (p.lane && p.type == DType::q8_0) {
      move_changed<to_cell>(row, p.values, p.value_stride, words,
                            [](std::uint32_t word) { return word ^ kByteBias; });
    } else {
      move<to_cell, kWord>(row, p.values, p.value_stride, words);
    }
  }
}

template <bool to_cell>
void move_row(CellPlace p, std::byte* row) {
  if (is_quantized(p.type)) {
    move_blocks<to_cell>(p, row);
  } else if (p.type == DType::f16) {
    move<to_cell, kScale>(row, p.values, p.value_stride, p.dim);
  } else {
    move<to_cell, kWord>(row, p.values, p.value_stride, row_bytes(p.type, p.dim) / kWord);
  }
}

}  // namespace

CellPlace k_place(const TileLayout& tile, std::byte* base, std::uint32_t cell) {
  std::byte* const group = base + cell / kGroupCells * tile.group_bytes;
  const std::size_t lane = cell % kGroupCells;
  const std::size_t unit = unit_bytes(tile.type);
  return {.type = tile.type,
          .dim = tile.dim,
          .lane = true,
          .scales = group + lane * kScale,
          .fifth = group + tile.fifth_offset + lane * kWord,
          .values = group + tile.values_offset + lane * unit,
          .scale_stride = kGroupCells * kScale,
          .fifth_stride = kGroupCells * kWord,
          .value_stride = kGroupCells * unit};
}

CellPlace v_place(const TileLayout& tile, std::byte* base, std::uint32_t cell) {
  const std::size_t blocks = is_quantized(tile.type) ? tile.dim / kBlock : 0;
  const std::size_t scales = has_minimum(tile.type) ? 2 * kScale : kScale;
  const std::size_t values =
      is_quantized(tile.type) ? blocks * code_bytes(tile.type) : row_bytes(tile.type, tile.dim);
  return {.type = tile.type,
          .dim = tile.dim,
          .lane = false,
          .scales = base + cell * blocks * scales,
          .fifth = base + tile.fifth_offset + cell * blocks * kWord,
          .values = base + tile.values_offset + cell * values,
          .scale_stride = kScale,
          .fifth_stride = kWord,
          .value_stride = unit_bytes(tile.type)};
}

void store_cell(const CellPlace& place, const std::byte* row) {
  move_row<true>(place, const_cast<std::byte*>(row));  // only read
}

void load_cell(const CellPlace& place, std::byte* row) { move_row<false>(place, row); }

}  // namespace pykv::kernels
