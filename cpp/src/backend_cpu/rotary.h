// Floor 2. Rotary embedding of single heads, for rope(), attention over moved segments and
// rewrite_k().
#pragma once

#include <array>
#include <span>
#include <vector>

#include "pykv/rope.h"
#include "pykv/types.h"

namespace pykv::cpu {

// cos, then sin, of the angles of some positions, [positions][2][dims / 2]. The angles are in
// double: at position 100,000 a float32 angle is off by 0.004. Negative positions turn back.
void fill_cos_sin(const RopeParams& rope, std::span<const Pos> positions, std::vector<float>& table);

// The same, kept from call to call: all layers rotate the same positions, in two ways at most.
class RopeTables {
 public:
  // [positions][2][dims / 2], or null: there is none yet.
  const float* find(const RopeParams& rope, std::span<const Pos> positions) const;
  // Takes the place of the one filled before the last one.
  const float* fill(const RopeParams& rope, std::span<const Pos> positions);

 private:
  struct Table {
    RopeParams rope;  // dims 0: empty
    std::vector<Pos> positions;
    std::vector<float> cos_sin;
  };
  std::array<Table, 2> tables_;
  std::size_t next_ = 0;
};

// Turns one head in place by a row of cos and sin.
struct HeadTurn {
  std::uint32_t dims;
  std::uint32_t offset;
  bool interleaved;

  explicit HeadTurn(const RopeParams& rope)
      : dims(rope.dims), offset(rope.offset), interleaved(rope.interleaved) {}
  void operator()(float* head, const float* cos_sin) const;
};

}  // namespace pykv::cpu
