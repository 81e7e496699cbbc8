#include <algorithm>
#include <cmath>
#include <string>

#include "pykv/errors.h"
#include "pykv/policy.h"

namespace pykv {

void validate(const Watermarks& marks) {
  // Written so that NaN fails.
  if (marks.low >= 0.0 && marks.low <= marks.high && marks.high <= 1.0) return;
  throw InvalidArgument("[Watermarks] low " + std::to_string(marks.low) + " and high " +
                        std::to_string(marks.high) +
                        " must be fractions of the capacity with 0 <= low <= high <= 1");
}

std::uint32_t reclaim_target(const Watermarks& marks, std::uint32_t capacity, std::uint32_t free,
                             std::uint32_t wanted) {
  validate(marks);
  const std::int64_t after = std::int64_t{free} - std::int64_t{wanted};
  if (static_cast<double>(after) >= marks.low * capacity) return 0;
  const auto stop = static_cast<std::int64_t>(std::ceil(marks.high * capacity));
  const std::int64_t held = std::max<std::int64_t>(std::int64_t{capacity} - free, 0);
  return static_cast<std::uint32_t>(std::min(stop - after, held));
}

}  // namespace pykv
