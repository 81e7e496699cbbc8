#include "pykv/rope.h"

#include <cmath>

#include "pykv/errors.h"

namespace pykv {

void validate(const RopeParams& rope, std::uint32_t head_dim, const std::string& where) {
  if (rope.dims % 2 != 0 || std::uint64_t{rope.offset} + rope.dims > head_dim)
    throw InvalidArgument(where + "rope dims " + std::to_string(rope.dims) + " from element " +
                          std::to_string(rope.offset) + " on must be even and within the head size " +
                          std::to_string(head_dim));
  if (!(rope.base > 0) || !std::isfinite(rope.base))
    throw InvalidArgument(where + "rope base " + std::to_string(rope.base) + " must be positive and finite");
  if (!rope.frequencies.empty() && rope.frequencies.size() != rope.dims / 2)
    throw InvalidArgument(where + std::to_string(rope.frequencies.size()) + " rope frequencies; needed are " +
                          std::to_string(rope.dims / 2) + ", one for each pair of dims, or none");
  for (const float frequency : rope.frequencies)
    if (!std::isfinite(frequency))
      throw InvalidArgument(where + "rope frequency " + std::to_string(frequency) + " must be finite");
}

}  // namespace pykv
