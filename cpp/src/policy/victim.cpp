#include <algorithm>
#include <tuple>

#include "pykv/policy.h"

namespace pykv {

std::optional<std::size_t> choose_victim(std::span<const SessionFacts> sessions) {
  if (sessions.size() < 2) return std::nullopt;
  const auto oldest = std::min_element(sessions.begin(), sessions.end(),
                                       [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  const auto gives_way_before = [](const SessionFacts& a, const SessionFacts& b) {
    return std::tie(a.priority, b.tenant_over_floor, b.arrival) <
           std::tie(b.priority, a.tenant_over_floor, a.arrival);
  };
  auto victim = sessions.end();
  for (auto it = sessions.begin(); it != sessions.end(); ++it)
    if (it != oldest && (victim == sessions.end() || gives_way_before(*it, *victim))) victim = it;
  return static_cast<std::size_t>(victim - sessions.begin());
}

}  // namespace pykv
