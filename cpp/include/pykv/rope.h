// Floor 1. Rotary position embedding of a head: at position p, pair i of its rotated
// elements (a, b) becomes (a cos - b sin, a sin + b cos) of the angle p * frequency i. It is
// relative: turning by p and then by d is turning by p + d, so stored K moves by d positions
// with RoPE(d), and a query turned by RoPE(-d) sees K as if K had been moved.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace pykv {

struct RopeParams {
  std::uint32_t dims = 0;   // rotated elements, even; 0: K does not depend on positions
  float base = 10000.0F;    // frequency i is base^(-2i / dims), where none are given
  bool interleaved = true;  // pairs (2i, 2i + 1); false: (i, i + dims / 2)
  // Radians per position of each pair, dims / 2 of them, or empty. For scaled embeddings:
  // linear, llama3, YaRN.
  std::vector<float> frequencies{};
  std::uint32_t offset = 0;  // first rotated element of the head
  friend bool operator==(const RopeParams&, const RopeParams&) = default;
};

// Throws InvalidArgument, with `where` in front, unless the rotated elements lie in a head of
// `head_dim` and base and frequencies are finite and as many as needed.
void validate(const RopeParams& rope, std::uint32_t head_dim, std::string_view where);

}  // namespace pykv
