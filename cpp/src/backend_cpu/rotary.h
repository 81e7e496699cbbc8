// Floor 2. Rotary embedding of single heads, for rope(), attention over moved segments and
// rewrite_k().
#pragma once

#include <span>
#include <vector>

#include "pykv/rope.h"
#include "pykv/types.h"

namespace pykv::cpu {

// cos, then sin, of the angles of some positions, [positions][2][dims / 2]. The angles are in
// double: at position 100,000 a float32 angle is off by 0.004. Negative positions turn back.
std::vector<float> cos_sin(const RopeParams& rope, std::span<const Pos> positions);

// The same, kept from call to call: all layers rotate the same positions.
class RopeTable {
 public:
  void fill(const RopeParams& rope, std::span<const Pos> positions);
  const float* row(std::size_t i) const { return cos_sin_.data() + i * rope_.dims; }

 private:
  RopeParams rope_;  // dims 0: empty
  std::vector<Pos> positions_;
  std::vector<float> cos_sin_;
};

// Turns one head in place by a row of cos and sin.
void rotate_head(float* head, const RopeParams& rope, const float* cos_sin);

}  // namespace pykv::cpu
