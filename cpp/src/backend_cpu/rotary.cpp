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
  for (const Pos position : positions) {
    for (const double f : frequency) table.push_back(static_cast<float>(std::cos(position * f)));
    for (const double f : frequency) table.push_back(static_cast<float>(std::sin(position * f)));
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

namespace {

// Pair i is (a[i * step], b[i * step]). A step that is a constant and pointers that do not meet: the
// compiler makes vectors of it.
template <std::size_t step>
void rotate(float* __restrict a, float* __restrict b, const float* __restrict cos,
            const float* __restrict sin, std::size_t pairs) {
  for (std::size_t i = 0; i < pairs; ++i) {
    const float x = a[i * step];
    const float y = b[i * step];
    a[i * step] = x * cos[i] - y * sin[i];
    b[i * step] = x * sin[i] + y * cos[i];
  }
}

}  // namespace

void rotate_head(float* head, const RopeParams& rope, const float* cos_sin) {
  const std::size_t pairs = rope.dims / 2;
  float* const first = head + rope.offset;
  if (rope.interleaved) return rotate<2>(first, first + 1, cos_sin, cos_sin + pairs, pairs);
  rotate<1>(first, first + pairs, cos_sin, cos_sin + pairs, pairs);
}

}  // namespace pykv::cpu
