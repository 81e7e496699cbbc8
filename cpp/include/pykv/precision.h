// Floor 1. How linear layers and attention multiply. Weights and KV always keep the precision in
// which they are stored.
#pragma once

#include <cstdint>
#include <string_view>

namespace pykv {

enum class Precision : std::uint8_t {
  // As fast, but attention rounds to bf16, where the machine multiplies that.
  fastest,
  // Activations are rounded to 8-bit integers with a float32 scale per 32 of them, where the
  // weight's type has kernels for it; elsewhere as exact. Attention rounds queries, K, V and the
  // softmax's weights to integers of 13 to 16 bits with a scale per row, where the machine
  // multiplies those faster (AVX-512 VNNI).
  fast,
  // Float32 activations: the exact result of the dequantized weights and KV up to the rounding
  // of float32 additions.
  exact,
};

// Throws InvalidArgument naming the three.
Precision parse_precision(std::string_view name);
const char* precision_name(Precision precision);

}  // namespace pykv
