// Floor 1. Block formats: encode and decode between float32 rows and GGUF's row layout.
// One rule for every tier and device; all arithmetic below is float32, one rounding per
// operation, nothing fused.
//
//   type    block of 32 elements                  value of code q
//   q8_0    f16 d, int8 q[32]                     d * q
//   q4_0    f16 d, 16 bytes of nibbles            d * (q - 8)
//   q4_1    f16 d, f16 m, 16 bytes                d * q + m
//   q5_0    f16 d, u32 fifth bits, 16 bytes       d * (q - 16)
//   q5_1    f16 d, f16 m, u32, 16 bytes           d * q + m
//   iq4_nl  f16 d, 16 bytes                       d * kIq4NlValues[q]
// Nibbles: byte j has element j in its low half and element j + 16 in its high half; bit j
// of the u32 is the fifth bit of element j. Weights may also have K types, blocks of 256 that
// are only decoded: see cpp/src/quant/k_blocks.h.
//
// Encoding. `peak` is the element of largest magnitude, the first of equal ones; r = 1 / d
// with d *before* it is rounded to f16, or 0 if that is not finite.
//   q8_0    d = |peak| / 127,    q = half-even round of x * r
//   q4_0    d = peak / -8,       q = integer part of x * r + 8.5, at most 15
//   q5_0    d = peak / -16,      q = integer part of x * r + 16.5, at most 31
//   q4_1    d = (max - min) / 15, m = min, q = integer part of (x - min) * r + 0.5, at most 15
//   q5_1    d = (max - min) / 31, likewise, at most 31
//   iq4_nl  q = entry nearest to x * (1 / (peak / -127)), the higher one halfway;
//           d = Σ (x * x * v) * x / Σ (x * x * v) * v over v = entry of q, in order
// These are the rules of the formats' reference encoders, except q8_0, where ties go to
// even (as fast encoders of it do).
//
// Special values, every quantized type: NaN and -0 count as 0. Elements are cut, before
// anything else, to 65504 (the largest f16) times the largest |code| (127, 8, 16; q4_1 and
// q5_1: times 1), so that no block decodes to infinity or NaN; the d of iq4_nl is cut to
// +-65504. Where d is so small that r is not finite (iq4_nl: |peak| < 1e-15) all codes
// stand for 0 (q4_1, q5_1: for m) and d is 0 as f16. f16 and bf16 keep NaN and infinity.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pykv/dtype.h"

namespace pykv {

inline constexpr std::array<std::int8_t, 16> kIq4NlValues{-127, -104, -83, -65, -49, -35, -22, -10,
                                                          1,    13,   25,  38,  53,  69,  89,  113};

std::uint16_t f16_from_f32(float value);  // round half to even, overflow to infinity
float f32_from_f16(std::uint16_t bits);   // exact
std::uint16_t bf16_from_f32(float value);
float f32_from_bf16(std::uint16_t bits);

// Encodes values.size() elements (a multiple of the block size) into `out`, which
// holds row_bytes(type, values.size()) bytes.
void encode_row(DType type, std::span<const float> values, std::span<std::byte> out);

// Decodes.
void decode_row(DType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace pykv
