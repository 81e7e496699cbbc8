#include "backend_cpu/rotary.h"

#include <algorithm>
#include <cmath>

namespace pykv::cpu {
namespace {

std::vector<double> frequencies(const RopeParams& rope) {
  std::vector<double> result;
  result.reserve(rope.dims / 2);
  result.assign(rope.frequencies.begin(), rope.frequencies.end());
  for (std::size_t i = result.size(); i < rope.dims / 2; ++i)
    result.push_back(std::pow(double{rope.base}, -2.0 * static_cast<double>(i) / rope.dims));
  return result;
}

}  // namespace

void fill_cos_sin(const RopeParams& rope, std::span<const Pos> positions, std::vector<float>& table) {
  const std::vector<double> frequency = frequencies(rope);
  table.clear();
  table.reserve(positions.size() * rope.dims);
  for (const Pos position : positions) {
    for (const double f : frequency) table.push_back(static_cast<float>(std::cos(position * f)));
    for (const double f : frequency) table.push_back(static_cast<float>(std::sin(position * f)));
  }
}

const float* RopeTables::find(const RopeParams& rope, std::span<const Pos> positions) const {
  for (const Table& table : tables_)
    if (table.rope == rope && std::ranges::equal(positions, table.positions)) return table.cos_sin.data();
  return nullptr;
}

const float* RopeTables::fill(const RopeParams& rope, std::span<const Pos> positions) {
  Table& table = tables_[next_];
  table.rope.dims = 0;  // not valid if an allocation fails below
  fill_cos_sin(rope, positions, table.cos_sin);
  table.positions.assign(positions.begin(), positions.end());
  table.rope = rope;
  next_ = 1 - next_;
  return table.cos_sin.data();
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

void HeadTurn::operator()(float* head, const float* cos_sin) const {
  const std::size_t pairs = dims / 2;
  float* const first = head + offset;
  if (interleaved) return rotate<2>(first, first + 1, cos_sin, cos_sin + pairs, pairs);
  rotate<1>(first, first + pairs, cos_sin, cos_sin + pairs, pairs);
}

}  // namespace pykv::cpu
