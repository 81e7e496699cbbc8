// Floor 1. How linear layers multiply. Weights always keep the precision of their file.
#pragma once

#include <cstdint>
#include <string_view>

namespace pykv {

enum class Precision : std::uint8_t {
  // Activations are rounded to 8-bit integers with a float32 scale per 32 of them, where the
  // weight's type has kernels for it; elsewhere as exact.
  fast,
  // Float32 activations: the exact result of the dequantized weights up to the rounding of
  // float32 additions.
  exact,
};

// Throws InvalidArgument naming the two.
Precision parse_precision(std::string_view name);
const char* precision_name(Precision precision);

}  // namespace pykv
