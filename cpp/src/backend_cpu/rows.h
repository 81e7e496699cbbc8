// Floor 2. Rows of a buffer after all checks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pykv::cpu {

struct RowView {
  float* data = nullptr;
  std::size_t stride = 0;
  std::uint32_t count = 0;
  std::uint32_t width = 0;
  float* row(std::size_t i) const { return data + i * stride; }
};

constexpr std::uint32_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint32_t>((a + b - 1) / b);
}

}  // namespace pykv::cpu
