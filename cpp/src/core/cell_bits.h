// Floor 1, internal. Bits of one block: bit i is the cell at offset i.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "pykv/types.h"

namespace pykv::bits {

inline constexpr std::uint64_t kAll = ~std::uint64_t{0};

constexpr std::uint64_t one(std::uint32_t offset) { return std::uint64_t{1} << offset; }

// Bits from `offset` up; none at kBlockCells.
constexpr std::uint64_t from(std::uint32_t offset) { return offset >= kBlockCells ? 0 : kAll << offset; }

constexpr std::uint64_t range(std::uint32_t begin, std::uint32_t end) { return from(begin) & ~from(end); }

// `length` bits from `offset` up, both inside a block; 1 at least.
constexpr std::uint64_t stretch(std::uint32_t offset, std::uint32_t length) {
  return kAll >> (kBlockCells - length) << offset;
}

// Bits above `offset`, which is inside a block.
constexpr std::uint64_t above(std::uint32_t offset) { return (kAll - 1) << offset; }

// Offset of the lowest set bit, kBlockCells if there is none.
constexpr std::uint32_t lowest(std::uint64_t mask) {
  return static_cast<std::uint32_t>(std::countr_zero(mask));
}

// Offset of the highest set bit of a mask that is not 0.
constexpr std::uint32_t highest(std::uint64_t mask) {
  return kBlockCells - 1 - static_cast<std::uint32_t>(std::countl_zero(mask));
}

constexpr std::uint32_t count(std::uint64_t mask) { return static_cast<std::uint32_t>(std::popcount(mask)); }

// Bitmaps over blocks.
inline bool test(const std::vector<std::uint64_t>& map, BlockIndex block) {
  return (map[block / 64] >> (block % 64) & 1) != 0;
}

inline void assign(std::vector<std::uint64_t>& map, BlockIndex block, bool value) {
  const std::uint64_t bit = one(block % 64);
  map[block / 64] = value ? map[block / 64] | bit : map[block / 64] & ~bit;
}

}  // namespace pykv::bits
