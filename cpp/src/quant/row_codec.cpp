#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "pykv/errors.h"
#include "pykv/quant.h"

namespace pykv {
namespace {

constexpr std::size_t kBlock = 32;
constexpr float kMaxF16 = 65504.0F;

void store16(std::byte* to, std::uint16_t bits) { std::memcpy(to, &bits, sizeof bits); }

std::uint16_t load16(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

// |x| < 2^22. Adding 1.5 * 2^23 leaves no fraction bits, so that the addition rounds;
// std::nearbyint would be a library call per element.
float round_half_even(float x) {
  constexpr float kShift = 12582912.0F;
  return (x + kShift) - kShift;
}

// d is capped at the largest f16, so that no block decodes to infinity or NaN; without
// a finite reciprocal (all zero, or d below 2^-127, which f16 stores as 0) q is 0.
void encode_q8_0(const float* values, std::byte* out) {
  float largest = 0.0F;
  for (std::size_t i = 0; i < kBlock; ++i)
    if (!std::isnan(values[i])) largest = std::max(largest, std::fabs(values[i]));
  const float d = std::min(largest / 127.0F, kMaxF16);
  const float reciprocal = d > 0.0F && std::isfinite(1.0F / d) ? 1.0F / d : 0.0F;
  store16(out, f16_from_f32(d));
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float x = std::isnan(values[i]) ? 0.0F : values[i];
    const float scaled = std::clamp(x * reciprocal, -127.0F, 127.0F);
    out[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(round_half_even(scaled)));
  }
}

void decode_q8_0(const std::byte* bytes, float* out) {
  const float d = f32_from_f16(load16(bytes));
  for (std::size_t i = 0; i < kBlock; ++i)
    out[i] = d * static_cast<float>(static_cast<std::int8_t>(bytes[2 + i]));
}

void decode_q4_1(const std::byte* bytes, float* out) {
  const float d = f32_from_f16(load16(bytes));
  const float m = f32_from_f16(load16(bytes + 2));
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    const auto packed = static_cast<unsigned>(bytes[4 + i]);
    out[i] = d * static_cast<float>(packed & 15U) + m;
    out[i + kBlock / 2] = d * static_cast<float>(packed >> 4) + m;
  }
}

void check_sizes(const char* where, DType type, std::size_t elements, std::size_t bytes) {
  const std::size_t expected = row_bytes(type, elements);
  if (bytes != expected)
    throw InvalidArgument("[" + std::string(where) + "] " + std::to_string(bytes) + " bytes for " +
                          std::to_string(elements) + " elements of " + traits(type).name + ", which take " +
                          std::to_string(expected));
}

[[noreturn]] void refuse(const char* where, DType type, const char* supported) {
  throw Unsupported("[" + std::string(where) + "] type " + traits(type).name + " is not supported; use " +
                    supported);
}

}  // namespace

void encode_row(DType type, std::span<const float> values, std::span<std::byte> out) {
  check_sizes("encode_row", type, values.size(), out.size());
  const std::size_t n = values.size();
  switch (type) {
    case DType::f32:
      if (n != 0) std::memcpy(out.data(), values.data(), n * sizeof(float));
      return;
    case DType::f16:
      for (std::size_t i = 0; i < n; ++i) store16(out.data() + 2 * i, f16_from_f32(values[i]));
      return;
    case DType::bf16:
      for (std::size_t i = 0; i < n; ++i) store16(out.data() + 2 * i, bf16_from_f32(values[i]));
      return;
    case DType::q8_0:
      for (std::size_t b = 0; b < n / kBlock; ++b)
        encode_q8_0(values.data() + b * kBlock, out.data() + b * 34);
      return;
    default:
      refuse("encode_row", type, "f32, f16, bf16 or q8_0");
  }
}

void decode_row(DType type, std::span<const std::byte> bytes, std::span<float> out) {
  check_sizes("decode_row", type, out.size(), bytes.size());
  const std::size_t n = out.size();
  switch (type) {
    case DType::f32:
      if (n != 0) std::memcpy(out.data(), bytes.data(), n * sizeof(float));
      return;
    case DType::f16:
      for (std::size_t i = 0; i < n; ++i) out[i] = f32_from_f16(load16(bytes.data() + 2 * i));
      return;
    case DType::bf16:
      for (std::size_t i = 0; i < n; ++i) out[i] = f32_from_bf16(load16(bytes.data() + 2 * i));
      return;
    case DType::q8_0:
      for (std::size_t b = 0; b < n / kBlock; ++b)
        decode_q8_0(bytes.data() + b * 34, out.data() + b * kBlock);
      return;
    case DType::q4_1:
      for (std::size_t b = 0; b < n / kBlock; ++b)
        decode_q4_1(bytes.data() + b * 20, out.data() + b * kBlock);
      return;
    default:
      refuse("decode_row", type, "f32, f16, bf16, q8_0 or q4_1");
  }
}

}  // namespace pykv
