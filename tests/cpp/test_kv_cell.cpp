// kv_cell.h and the decoders of every tier: a row put into a K or V tile lies where
// block_layout.h says, comes back as it was, and is decoded as decode_row does.
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/kernels.h"
#include "kernels/kv_cell.h"
#include "pykv/quant.h"

using namespace pykv;

namespace {

using Bytes = std::vector<std::byte>;

std::vector<std::uint32_t> dims_of(DType type) {
  if (is_quantized(type)) return {32, 64, 96, 288, 512, 576};
  return {8, 24, 64, 80, 256, 576};
}

// Any bytes, but no infinity and no NaN where f16 or bf16 stand.
Bytes random_row(DType type, std::uint32_t dim, std::mt19937& random) {
  Bytes row(row_bytes(type, dim));
  for (std::byte& byte : row) byte = static_cast<std::byte>(random());
  const std::size_t step = is_quantized(type) ? traits(type).block_bytes : 2;
  const std::size_t heads = is_quantized(type) ? (has_minimum(type) ? 2 : 1) : 1;
  for (std::size_t at = 0; at < row.size(); at += step)
    for (std::size_t head = 0; head < heads; ++head) row[at + 2 * head + 1] &= std::byte{0xbf};
  return row;
}

std::vector<float> decoded(DType type, const Bytes& row, std::uint32_t dim) {
  std::vector<float> values(dim);
  decode_row(type, row, values);
  return values;
}

bool same_bits(const float* a, const float* b, std::size_t n) { return std::memcmp(a, b, n * 4) == 0; }

struct Filled {
  TileLayout layout;
  Bytes tile;
  std::vector<Bytes> rows;  // of each cell
};

Filled filled_k(DType type, std::uint32_t dim, std::mt19937& random) {
  Filled f{k_tile_layout(type, dim), {}, {}};
  f.tile.assign(f.layout.bytes, std::byte{0xaa});
  for (std::uint32_t cell = 0; cell < kBlockCells; ++cell) f.rows.push_back(random_row(type, dim, random));
  for (std::uint32_t cell = 0; cell < kBlockCells; ++cell)
    kernels::store_cell(kernels::k_place(f.layout, f.tile.data(), cell), f.rows[cell].data());
  return f;
}

Filled filled_v(DType type, std::uint32_t dim, std::mt19937& random) {
  Filled f{v_tile_layout(type, dim), {}, {}};
  f.tile.assign(f.layout.bytes, std::byte{0xaa});
  for (std::uint32_t cell = 0; cell < kBlockCells; ++cell) f.rows.push_back(random_row(type, dim, random));
  for (std::uint32_t cell = 0; cell < kBlockCells; ++cell)
    kernels::store_cell(kernels::v_place(f.layout, f.tile.data(), cell), f.rows[cell].data());
  return f;
}

template <class Call>
void for_every_type_and_size(Call call) {
  std::mt19937 random(11);
  for (const DTypeTraits& t : all_dtypes()) {
    if (!t.for_kv) continue;
    for (const std::uint32_t dim : dims_of(t.type)) call(t.type, dim, random);
  }
}

// What stands at an offset.
template <class T>
T at(const std::byte* base, std::size_t offset) {
  T value;
  std::memcpy(&value, base + offset, sizeof value);
  return value;
}
float f16_at(const std::byte* base, std::size_t offset) {
  return f32_from_f16(at<std::uint16_t>(base, offset));
}

float plain_at(DType type, const std::byte* base, std::size_t offset) {
  if (type == DType::f32) return at<float>(base, offset);
  const auto bits = at<std::uint16_t>(base, offset);
  return type == DType::f16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

float value_of(DType type, int code, float d, float m) {
  if (type == DType::iq4_nl) code = kIq4NlValues[static_cast<std::size_t>(code)];
  if (type == DType::q4_0) code -= 8;
  if (type == DType::q5_0) code -= 16;
  return has_minimum(type) ? d * static_cast<float>(code) + m : d * static_cast<float>(code);
}

// Element d of a cell, read by the offsets in block_layout.h.
float k_by_the_header(const TileLayout& k, const std::byte* tile, std::size_t d, std::size_t cell) {
  const std::byte* const group = tile + cell / 16 * k.group_bytes;
  const std::byte* const values = group + k.values_offset;
  const std::size_t c = cell % 16, b = d / 32, i = d % 32, j = i % 16;
  if (k.type == DType::bf16) return plain_at(k.type, values, (d / 2 * 16 + c) * 4 + d % 2 * 2);
  if (!is_quantized(k.type)) return plain_at(k.type, values, (d * 16 + c) * traits(k.type).block_bytes);
  const bool minimum = has_minimum(k.type);
  const float scale = f16_at(group, (b * (minimum ? 32 : 16) + c) * 2);
  const float m = minimum ? f16_at(group, (b * 32 + c) * 2 + 32) : 0.0F;
  if (k.type == DType::q8_0)
    return scale * static_cast<float>(at<std::uint8_t>(values, (d / 4 * 16 + c) * 4 + d % 4) - 128);
  int code = at<std::uint8_t>(values, ((b * 4 + j / 4) * 16 + c) * 4 + j % 4) >> (i < 16 ? 0 : 4) & 15;
  if (has_fifth_bits(k.type))
    code |= static_cast<int>(
                at<std::uint32_t>(group + k.fifth_offset, (b * 16 + c) * 4) >> (i % 4 * 8 + i / 4) & 1U)
            << 4;
  return value_of(k.type, code, scale, m);
}

float v_by_the_header(const TileLayout& v, const std::byte* tile, std::size_t d, std::size_t c) {
  const std::byte* const values = tile + v.values_offset;
  const std::size_t blocks = v.dim / 32, b = d / 32, i = d % 32, j = i % 16;
  if (!is_quantized(v.type)) return plain_at(v.type, values, (c * v.dim + d) * traits(v.type).block_bytes);
  const bool minimum = has_minimum(v.type);
  const float scale = f16_at(tile, (c * blocks + b) * (minimum ? 4 : 2));
  const float m = minimum ? f16_at(tile, (c * blocks + b) * 4 + 2) : 0.0F;
  if (v.type == DType::q8_0) return scale * static_cast<float>(at<std::int8_t>(values, c * v.dim + d));
  int code = at<std::uint8_t>(values, (c * blocks + b) * 16 + j) >> (i < 16 ? 0 : 4) & 15;
  if (has_fifth_bits(v.type))
    code |= static_cast<int>(at<std::uint32_t>(tile + v.fifth_offset, (c * blocks + b) * 4) >> i & 1U) << 4;
  return value_of(v.type, code, scale, m);
}

}  // namespace

TEST(values_lie_where_the_header_says) {
  for_every_type_and_size([](DType type, std::uint32_t dim, std::mt19937& random) {
    const Filled k = filled_k(type, dim, random);
    const Filled v = filled_v(type, dim, random);
    for (const std::uint32_t cell : {0U, 15U, 16U, 41U, 63U}) {
      const std::vector<float> keys = decoded(type, k.rows[cell], dim);
      const std::vector<float> values = decoded(type, v.rows[cell], dim);
      for (std::uint32_t d = 0; d < dim; ++d) {
        CHECK(k_by_the_header(k.layout, k.tile.data(), d, cell) == keys[d]);
        CHECK(v_by_the_header(v.layout, v.tile.data(), d, cell) == values[d]);
      }
    }
  });
}

TEST(rows_come_back_from_their_cells) {
  for_every_type_and_size([](DType type, std::uint32_t dim, std::mt19937& random) {
    Filled k = filled_k(type, dim, random);
    Filled v = filled_v(type, dim, random);
    Bytes row(row_bytes(type, dim));
    for (std::uint32_t cell = 0; cell < kBlockCells; ++cell) {
      kernels::load_cell(kernels::k_place(k.layout, k.tile.data(), cell), row.data());
      CHECK(row == k.rows[cell]);
      kernels::load_cell(kernels::v_place(v.layout, v.tile.data(), cell), row.data());
      CHECK(row == v.rows[cell]);
    }
  });
}

TEST(every_tier_decodes_groups_of_k_as_decode_row) {
  for_every_type_and_size([](DType type, std::uint32_t dim, std::mt19937& random) {
    const Filled k = filled_k(type, dim, random);
    std::vector<float> panel(std::size_t{dim} * kGroupCells);
    std::vector<float> lane(dim);
    for (const kernels::Kernels* tier : kernels::available_kernels()) {
      for (std::uint32_t cell = 0; cell < kBlockCells; ++cell) {
        const std::byte* group = k.tile.data() + cell / kGroupCells * k.layout.group_bytes;
        if (cell % kGroupCells == 0)
          tier->decode_panel({type, group, group + k.layout.fifth_offset, group + k.layout.values_offset}, 0,
                             dim, panel.data());
        for (std::uint32_t d = 0; d < dim; ++d) lane[d] = panel[d * kGroupCells + cell % kGroupCells];
        CHECK(same_bits(lane.data(), decoded(type, k.rows[cell], dim).data(), dim));
      }
    }
  });
}

TEST(every_tier_decodes_cells_of_v_as_decode_row) {
  for_every_type_and_size([](DType type, std::uint32_t dim, std::mt19937& random) {
    const Filled v = filled_v(type, dim, random);
    constexpr std::uint32_t kFirst = 3, kCount = 58;
    std::vector<float> panel(kCount * kernels::kPanelWidth);
    for (const kernels::Kernels* tier : kernels::available_kernels()) {
      for (std::uint32_t at = 0; at < dim; at += kernels::kPanelWidth) {
        tier->decode_cells(v.tile.data(), v.layout, at, kFirst, kCount, panel.data());
        for (std::uint32_t i = 0; i < kCount; ++i) {
          std::vector<float> expected = decoded(type, v.rows[kFirst + i], dim);
          expected.resize(dim + kernels::kPanelWidth);  // zeros past the end
          CHECK(
              same_bits(panel.data() + i * kernels::kPanelWidth, expected.data() + at, kernels::kPanelWidth));
        }
      }
    }
  });
}

// Every exponent, both signs, halfway cases and their neighbours, infinities and NaN.
TEST(every_tier_encodes_f16_as_encode_row) {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; high += 0x40)
    for (const std::uint32_t low : {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x2fffU, 0x3000U, 0x3001U})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  values.resize(values.size() - 3);  // an end that is no whole vector
  std::vector<std::byte> expected(values.size() * 2), got(expected.size());
  encode_row(DType::f16, values, expected);
  for (const kernels::Kernels* tier : kernels::available_kernels()) {
    tier->encode_f16(values.data(), values.size(), got.data());
    CHECK(got == expected);
  }
}

// Blocks of one magnitude each, of all there are, halfway cases, infinities and NaN among them.
TEST(every_tier_encodes_q8_0_as_encode_row) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<std::uint32_t> any;
  std::vector<float> values;
  for (int exponent = -149; exponent <= 127; ++exponent)
    for (std::uint32_t i = 0; i < 64; ++i) values.push_back(std::ldexp(normal(random), exponent));
  for (std::uint32_t i = 0; i < 64 * 64; ++i) values.push_back(std::bit_cast<float>(any(random)));
  for (int i = -127; i <= 128; ++i) values.push_back(static_cast<float>(i) - 0.5F);  // one d is 1
  values.resize(values.size() + 64);                                                 // zeros
  std::vector<std::byte> expected(values.size() / 32 * 34), got(expected.size());
  encode_row(DType::q8_0, values, expected);
  for (const kernels::Kernels* tier : kernels::available_kernels()) {
    tier->encode_q8_0(values.data(), values.size(), got.data());
    CHECK(got == expected);
  }
}

TEST(the_transform_is_orthonormal_its_own_inverse_and_the_same_on_every_tier) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  for (const std::uint32_t n : {16U, 64U, 128U, 512U}) {
    std::vector<float> x(std::size_t{3} * n);
    for (float& value : x) value = normal(random);
    std::vector<float> expected = x;
    kernels::available_kernels().front()->hadamard(expected.data(), n, 3);
    for (std::uint32_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::uint32_t j = 0; j < n; ++j)
        sum += static_cast<double>(x[n + j]) * (std::popcount(i & j) % 2 == 0 ? 1 : -1);
      CHECK(std::abs(sum / std::sqrt(n) - static_cast<double>(expected[n + i])) < 1e-5);
    }
    for (const kernels::Kernels* tier : kernels::available_kernels()) {
      std::vector<float> actual = x;
      tier->hadamard(actual.data(), n, 3);
      CHECK(same_bits(actual.data(), expected.data(), actual.size()));
      tier->hadamard(actual.data(), n, 3);
      for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(actual[i] - x[i]) < 2e-6F);
    }
  }
}
