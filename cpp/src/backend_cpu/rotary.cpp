#include "backend_cpu/rotary.h"

#include <algorithm>
#include <cmath>

namespace pykv::cpu {
namespace {

std::vector<double> frequencies(const RopeParams& rope) {
  std::vector<double> result(rope.frequencies.begin(), rope.frequencies.end());
  for (std::size_t i = result.size(); i < rope.dims / 2; ++i)
    result.push_back(std::pow(double{rope.base}, -2.0 * static_cast<double>(i) / rope.dims));
  return result;
}

}  // namespace

std::vector<float> cos_sin(const RopeParams& rope, std::span<const Pos> positions) {
  const std::vector<double> frequency = frequencies(rope);
  std::vector<float> table;
  table.reserve(positions.size() * rope.dims);
  for (const Pos position : positions)
    for (const double f : frequency) {
      table.push_back(static_cast<float>(std::cos(position * f)));
      table.push_back(static_cast<float>(std::sin(position * f)));
    }
  return table;
}

void RopeTable::fill(const RopeParams& rope, std::span<const Pos> positions) {
  if (rope_ == rope && std::equal(positions.begin(), positions.end(), positions_.begin(), positions_.end()))
    return;
  rope_.dims = 0;  // not valid if an allocation fails below
  cos_sin_ = cos_sin(rope, positions);
  positions_.assign(positions.begin(), positions.end());
  rope_ = rope;
}

void rotate_head(float* head, const RopeParams& rope, const float* cos_sin) {
  const std::uint32_t pairs = rope.dims / 2;
  const std::uint32_t step = rope.interleaved ? 2 : 1;
  const std::uint32_t partner = rope.interleaved ? 1 : pairs;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    float* const a = head + rope.offset + i * step;
    float* const b = a + partner;
    const float x = *a;
    const float y = *b;
    *a = x * cos_sin[2 * i] - y * cos_sin[2 * i + 1];
    *b = x * cos_sin[2 * i + 1] + y * cos_sin[2 * i];
  }
}

}  // namespace pykv::cpu
