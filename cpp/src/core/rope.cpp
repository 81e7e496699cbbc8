#include "pykv/rope.h"

#include <cmath>
#include <string>

#include "pykv/errors.h"

namespace pykv {

void validate(const RopeParams& rope, std::uint32_t head_dim, std::string_view where) {
  const auto refuse = [&](const std::string& what) { throw InvalidArgument(std::string(where) + what); };
  if (rope.dims % 2 != 0 || std::uint64_t{rope.offset} + rope.dims > head_dim)
    refuse("rope dims " + std::to_string(rope.dims) + " from element " + std::to_string(rope.offset) +
           " on must be even and within the head size " + std::to_string(head_dim));
  if (!(rope.base > 0) || !std::isfinite(rope.base))
    refuse("rope base " + std::to_string(rope.base) + " must be positive and finite");
  if (!rope.frequencies.empty() && rope.frequencies.size() != rope.dims / 2)
    refuse(std::to_string(rope.frequencies.size()) + " rope frequencies; needed are " +
           std::to_string(rope.dims / 2) + ", one for each pair of dims, or none");
  for (const float frequency : rope.frequencies)
    if (!std::isfinite(frequency)) refuse("rope frequency " + std::to_string(frequency) + " must be finite");
}

}  // namespace pykv
