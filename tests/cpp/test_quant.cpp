// float16.cpp, row_codec.cpp and the regrouping of weights into panels.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/panel.h"
#include "pykv/errors.h"
#include "pykv/quant.h"

using namespace pykv;

TEST(f16_round_trip_is_the_identity_on_every_value) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f32_from_f16(half);
    const bool nan = (bits & 0x7fffU) > 0x7c00U;
    if (nan) {
      CHECK(std::isnan(value));
      CHECK(f16_from_f32(value) == (half | 0x200U));  // quiet, payload kept
    } else {
      CHECK(f16_from_f32(value) == half);
    }
  }
}

TEST(f16_rounds_ties_to_even_and_overflows_to_infinity) {
  CHECK(f32_from_f16(f16_from_f32(2049.0F)) == 2048.0F);
  CHECK(f32_from_f16(f16_from_f32(2051.0F)) == 2052.0F);
  CHECK(f16_from_f32(0x1p-25F) == 0);  // half of the smallest subnormal
  CHECK(f16_from_f32(std::nextafter(0x1p-25F, 1.0F)) == 1);
  CHECK(f16_from_f32(65519.0F) == 0x7bff);
  CHECK(f16_from_f32(65520.0F) == 0x7c00);
  CHECK(f16_from_f32(-0.0F) == 0x8000);
}

TEST(empty_rows_are_fine) {
  for (const DTypeTraits& t : all_dtypes()) {
    if (!is_k_type(t.type)) encode_row(t.type, {}, {});
    decode_row(t.type, {}, {});
  }
}

TEST(wrong_sizes_throw) {
  std::vector<float> values(32);
  std::vector<std::byte> bytes(34);
  CHECK_THROWS(InvalidArgument, encode_row(DType::q8_0, std::span(values).first(31), bytes));
  CHECK_THROWS(InvalidArgument, encode_row(DType::q8_0, values, std::span(bytes).first(33)));
  CHECK_THROWS(InvalidArgument, decode_row(DType::f16, bytes, values));
}

TEST(panels_hold_the_same_values) {
  std::mt19937 random(7);
  for (const DTypeTraits& t : all_dtypes()) {
    const DType type = t.type;
    const std::uint32_t cols = is_k_type(type) ? 512 : 96;
    for (const std::uint32_t rows : {1U, 5U, 16U}) {
      const std::size_t stride = row_bytes(type, cols);
      std::vector<std::byte> source(rows * stride);
      for (std::byte& byte : source) byte = static_cast<std::byte>(random() & 0x3fU);  // no NaN
      std::vector<std::byte> panel(kernels::panel_layout(type, cols).bytes);
      kernels::pack_panel(type, rows, cols, source.data(), panel.data());
      std::vector<float> expected(cols);
      std::vector<float> actual(cols);
      for (std::uint32_t row = 0; row < rows; ++row) {
        decode_row(type, std::span(source).subspan(row * stride, stride), expected);
        kernels::unpack_lane(type, panel.data(), row, actual);
        CHECK(actual == expected);
      }
    }
  }
}
