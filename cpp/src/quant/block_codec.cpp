#include "quant/block_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "pykv/errors.h"
#include "pykv/quant.h"
#include "quant/k_blocks.h"

namespace pykv::quant {
namespace {

using Block = std::array<float, kBlock>;
using Codes = std::array<std::uint8_t, kBlock>;

constexpr float kMaxF16 = 65504.0F;

// NaN becomes 0, -0 too (by the addition); the rest is cut to +-limit. A loop for each, so
// that the compiler makes vectors of them.
Block cleaned(const float* values, float limit) {
  Block x;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    x[i] = std::bit_cast<float>((bits & 0x7fffffffU) > 0x7f800000U ? 0U : bits) + 0.0F;
  }
  for (float& value : x) value = value < limit ? value : limit;
  for (float& value : x) value = value > -limit ? value : -limit;
  return x;
}

// Largest magnitude. Halves are folded onto each other, so that the loops become vectors.
float largest(const Block& x) {
  Block m;
  for (std::size_t i = 0; i < kBlock; ++i) m[i] = std::fabs(x[i]);
  for (std::size_t half = kBlock / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) m[i] = m[i] < m[i + half] ? m[i + half] : m[i];
  return m[0];
}

// The element of largest magnitude, the first one if there are several.
float peak(const Block& x) {
  const float magnitude = largest(x);
  return *std::find_if(x.begin(), x.end(), [&](float value) { return std::fabs(value) == magnitude; });
}

// 0 where 1 / d is not finite: d is 0, or so small that f16 stores it as 0.
float reciprocal(float d) {
  const float inverse = 1.0F / d;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

// |x| < 2^22. Adding 1.5 * 2^23 leaves no fraction bits, so that the addition rounds;
// std::nearbyint would be a library call per element.
float round_half_even(float x) {
  constexpr float kShift = 12582912.0F;
  return (x + kShift) - kShift;
}

void store_f16(std::byte* to, float value) {
  store16(to, f16_from_f32(std::clamp(value, -kMaxF16, kMaxF16)));
}
float load_f16(const std::byte* from) { return f32_from_f16(load16(from)); }

// Low halves of the bytes are elements 0 … 15, high halves 16 … 31.
void store_nibbles(std::byte* to, const Codes& codes) {
  for (std::size_t i = 0; i < kBlock / 2; ++i)
    to[i] = static_cast<std::byte>((codes[i] & 15U) | (codes[i + kBlock / 2] & 15U) << 4);
}

Codes load_nibbles(const std::byte* from) {
  Codes codes;
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    codes[i] = static_cast<std::uint8_t>(from[i]) & 15U;
    codes[i + kBlock / 2] = static_cast<std::uint8_t>(from[i]) >> 4;
  }
  return codes;
}

// Bit i is the fifth bit of element i.
void store_fifth_bits(std::byte* to, const Codes& codes) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < kBlock; ++i) bits |= static_cast<std::uint32_t>(codes[i] >> 4) << i;
  std::memcpy(to, &bits, sizeof bits);
}

void add_fifth_bits(const std::byte* from, Codes& codes) {
  std::uint32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  for (std::size_t i = 0; i < kBlock; ++i) codes[i] |= static_cast<std::uint8_t>((bits >> i & 1U) << 4);
}

void encode_q8_0(const float* values, std::byte* out) {
  const Block x = cleaned(values, 127.0F * kMaxF16);
  const float d = largest(x) / 127.0F;
  const float inverse = reciprocal(d);
  store_f16(out, d);
  for (std::size_t i = 0; i < kBlock; ++i) {
    const auto q = static_cast<std::int32_t>(round_half_even(x[i] * inverse));
    out[2 + i] = static_cast<std::byte>(q);
  }
}

void decode_q8_0(const std::byte* bytes, float* out) {
  const float d = load_f16(bytes);
  for (std::size_t i = 0; i < kBlock; ++i)
    out[i] = d * static_cast<float>(static_cast<std::int8_t>(bytes[2 + i]));
}

// q4_0, q5_0: codes 0 … 2 * kZero - 1 around kZero.
template <int kZero>
Codes symmetric_codes(const float* values, std::byte* d_out) {
  constexpr float kMost = 2 * kZero - 1;
  const Block x = cleaned(values, kZero * kMaxF16);
  const float d = peak(x) / static_cast<float>(-kZero);
  const float inverse = reciprocal(d);
  store_f16(d_out, d);
  Codes codes;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float code = x[i] * inverse + (static_cast<float>(kZero) + 0.5F);
    codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(code < kMost ? code : kMost));
  }
  return codes;
}

template <int kZero>
void decode_symmetric(const Codes& codes, const std::byte* d_in, float* out) {
  const float d = load_f16(d_in);
  for (std::size_t i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(int{codes[i]} - kZero);
}

// q4_1, q5_1: codes 0 … kMost above the least element.
template <int kMost>
Codes offset_codes(const float* values, std::byte* d_m_out) {
  const Block x = cleaned(values, kMaxF16);
  const float least = *std::min_element(x.begin(), x.end());
  const float d = (*std::max_element(x.begin(), x.end()) - least) / static_cast<float>(kMost);
  const float inverse = reciprocal(d);
  store_f16(d_m_out, d);
  store_f16(d_m_out + 2, least);
  Codes codes;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float code = (x[i] - least) * inverse + 0.5F;
    codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(code < kMost ? code : kMost));
  }
  return codes;
}

void decode_offset(const Codes& codes, const std::byte* d_m_in, float* out) {
  const float d = load_f16(d_m_in);
  const float m = load_f16(d_m_in + 2);
  for (std::size_t i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(codes[i]) + m;
}

void encode_q4_0(const float* values, std::byte* out) {
  store_nibbles(out + 2, symmetric_codes<8>(values, out));
}
void decode_q4_0(const std::byte* bytes, float* out) {
  decode_symmetric<8>(load_nibbles(bytes + 2), bytes, out);
}

void encode_q5_0(const float* values, std::byte* out) {
  const Codes codes = symmetric_codes<16>(values, out);
  store_fifth_bits(out + 2, codes);
  store_nibbles(out + 6, codes);
}
void decode_q5_0(const std::byte* bytes, float* out) {
  Codes codes = load_nibbles(bytes + 6);
  add_fifth_bits(bytes + 2, codes);
  decode_symmetric<16>(codes, bytes, out);
}

void encode_q4_1(const float* values, std::byte* out) {
  store_nibbles(out + 4, offset_codes<15>(values, out));
}
void decode_q4_1(const std::byte* bytes, float* out) { decode_offset(load_nibbles(bytes + 4), bytes, out); }

void encode_q5_1(const float* values, std::byte* out) {
  const Codes codes = offset_codes<31>(values, out);
  store_fifth_bits(out + 4, codes);
  store_nibbles(out + 8, codes);
}
void decode_q5_1(const std::byte* bytes, float* out) {
  Codes codes = load_nibbles(bytes + 8);
  add_fifth_bits(bytes + 4, codes);
  decode_offset(codes, bytes, out);
}

// Halfway points between entries are multiples of 1/2: the nearest entry of x, the higher
// one halfway, is a function of floor(2 x), which lies from kLowest to kHighest.
constexpr int kLowest = -256, kHighest = 255;
constexpr auto kNearestIq4Nl = [] {
  std::array<std::uint8_t, kHighest - kLowest + 1> nearest{};
  for (int twice = kLowest; twice <= kHighest; ++twice)
    for (std::size_t i = 1; i < kIq4NlValues.size(); ++i)
      if (twice >= kIq4NlValues[i - 1] + kIq4NlValues[i])
        nearest[static_cast<std::size_t>(twice - kLowest)] = static_cast<std::uint8_t>(i);
  return nearest;
}();

std::uint8_t nearest_iq4_nl(float x) {  // |x| <= 127 and a rounding error
  const float twice = 2.0F * x;
  const int towards_zero = static_cast<int>(twice);
  const int floor = towards_zero - (twice < static_cast<float>(towards_zero) ? 1 : 0);
  return kNearestIq4Nl[static_cast<std::size_t>(floor - kLowest)];
}

// The scale that fits best once the entries are chosen, elements weighing x²; all sums in
// the order of the elements.
void encode_iq4_nl(const float* values, std::byte* out) {
  constexpr float kTiny = 1e-15F;  // squares of smaller ones would vanish; f16 cannot tell them from 0
  const Block x = cleaned(values, 127.0F * kMaxF16);
  const float most = peak(x);
  const float inverse = std::fabs(most) < kTiny ? 0.0F : 1.0F / (most / static_cast<float>(kIq4NlValues[0]));
  Codes codes;
  float product = 0.0F, square = 0.0F;
  for (std::size_t i = 0; i < kBlock; ++i) {
    codes[i] = nearest_iq4_nl(inverse * x[i]);
    const auto q = static_cast<float>(kIq4NlValues[codes[i]]);
    const float weighted = x[i] * x[i] * q;
    product += weighted * x[i];
    square += weighted * q;
  }
  store_f16(out, inverse == 0.0F ? 0.0F : product / square);
  store_nibbles(out + 2, codes);
}

void decode_iq4_nl(const std::byte* bytes, float* out) {
  const float d = load_f16(bytes);
  const Codes codes = load_nibbles(bytes + 2);
  for (std::size_t i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(kIq4NlValues[codes[i]]);
}

template <DType type>
void decode_k(const std::byte* bytes, float* out) {
  decode_k_block(type, read_k_block(type, bytes), out);
}

// In the order of the enum.
constexpr std::array<Format, kDTypeCount> kFormats{{
    {{DType::f32, "f32", 0, 1, 4, true}},
    {{DType::f16, "f16", 1, 1, 2, true}},
    {{DType::bf16, "bf16", 30, 1, 2, true}},
    {{DType::q8_0, "q8_0", 8, 32, 34, true}, encode_q8_0, decode_q8_0},
    {{DType::q4_0, "q4_0", 2, 32, 18, true}, encode_q4_0, decode_q4_0},
    {{DType::q4_1, "q4_1", 3, 32, 20, true}, encode_q4_1, decode_q4_1},
    {{DType::q5_0, "q5_0", 6, 32, 22, true}, encode_q5_0, decode_q5_0},
    {{DType::q5_1, "q5_1", 7, 32, 24, true}, encode_q5_1, decode_q5_1},
    {{DType::iq4_nl, "iq4_nl", 20, 32, 18, true}, encode_iq4_nl, decode_iq4_nl},
    {{DType::q2_k, "q2_k", 10, 256, 84, false}, nullptr, decode_k<DType::q2_k>},
    {{DType::q3_k, "q3_k", 11, 256, 110, false}, nullptr, decode_k<DType::q3_k>},
    {{DType::q4_k, "q4_k", 12, 256, 144, false}, nullptr, decode_k<DType::q4_k>},
    {{DType::q5_k, "q5_k", 13, 256, 176, false}, nullptr, decode_k<DType::q5_k>},
    {{DType::q6_k, "q6_k", 14, 256, 210, false}, nullptr, decode_k<DType::q6_k>},
}};

}  // namespace

std::span<const Format> formats() { return kFormats; }

const Format& format(DType type) {
  const auto index = static_cast<std::size_t>(type);
  if (index >= kFormats.size())
    throw InvalidArgument("[traits] type number " + std::to_string(index) +
                          " is not a type; the last one is " + std::to_string(kFormats.size() - 1));
  return kFormats[index];
}

}  // namespace pykv::quant
