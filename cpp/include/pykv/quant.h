// Floor 1. Block formats: reference encode and decode between float32 rows and GGUF's
// row layout (REFERENCE: ggml block formats). One rounding rule for every tier and
// device: q8_0 scale d = amax / 127 computed in f32, quantized q = round_half_even(x / d)
// with x multiplied by the f32 reciprocal of the *unrounded* d, then d stored as f16
// (round half even). NaN in x is stored as 0. d is capped at the largest f16 and q at
// +-127, so that infinities and values beyond 127 * 65504 saturate and no block decodes to
// infinity; if 1 / d is not finite (d below 2^-127, 0 as f16), q is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pykv/dtype.h"

namespace pykv {

std::uint16_t f16_from_f32(float value);  // round half to even, overflow to infinity
float f32_from_f16(std::uint16_t bits);   // exact
std::uint16_t bf16_from_f32(float value);
float f32_from_bf16(std::uint16_t bits);

// Encodes values.size() elements (a multiple of the block size) into `out`, which
// holds row_bytes(type, values.size()) bytes. Types: f32, f16, bf16, q8_0 (others
// throw Unsupported until issue 3).
void encode_row(DType type, std::span<const float> values, std::span<std::byte> out);

// Decodes; types f32, f16, bf16, q8_0, q4_1.
void decode_row(DType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace pykv
