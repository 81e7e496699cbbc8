#include <bit>

#include "pykv/quant.h"

namespace pykv {

std::uint16_t f16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half;
  if (magnitude > 0x7f800000U) {  // NaN: quiet, payload cut, as the x86 instruction does
    half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {  // 65520 and more round to infinity
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // normal: rebias, round half to even
    const std::uint32_t rebiased = magnitude - (112U << 23);
    half = (rebiased + 0xfffU + ((rebiased >> 13) & 1U)) >> 13;
  } else {  // subnormal: the addition shifts the significand into place and rounds it
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  }
  return static_cast<std::uint16_t>(sign | half);
}

float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t rest = (bits & 0x7fffU) << 13;
  std::uint32_t magnitude;
  if (rest >= 0x0f800000U) {  // infinity and NaN (made quiet)
    magnitude = rest + (224U << 23);
    if (rest > 0x0f800000U) magnitude |= 0x00400000U;
  } else {  // 2^112 rebiases the exponent; exact for subnormals too
    magnitude = std::bit_cast<std::uint32_t>(std::bit_cast<float>(rest) * 0x1p112F);
  }
  return std::bit_cast<float>(sign | magnitude);
}

std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float f32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace pykv
