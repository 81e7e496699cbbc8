#include "engine/scheduler.h"

#include <algorithm>

namespace pykv::engine {

namespace {

// Tokens of `follower` that `leader` computes in this step, counted from where the
// follower stands.
std::uint32_t overlap(const Work& leader, std::uint32_t share, const Work& follower) {
  if (leader.name_space != follower.name_space || leader.stored > follower.stored) return 0;
  const std::size_t reach = std::min<std::size_t>(leader.stored + share, follower.tokens.size());
  if (reach <= follower.stored) return 0;
  // The likely difference first: where the follower would go on.
  if (leader.tokens[follower.stored] != follower.tokens[follower.stored]) return 0;
  const auto end = follower.tokens.begin() + static_cast<std::ptrdiff_t>(reach);
  const auto differs = std::mismatch(follower.tokens.begin(), end, leader.tokens.begin()).first;
  const auto common = static_cast<std::uint32_t>(differs - follower.tokens.begin());
  return common > follower.stored ? common - follower.stored : 0;
}

bool waits(std::span<const Work> works, std::span<const Share> prompts, const Work& follower) {
  if (!follower.follows || follower.pending() < 2) return false;
  const std::uint32_t enough = std::min(kWorthWaiting, follower.pending() - 1);
  return std::any_of(prompts.begin(), prompts.end(), [&](const Share& leader) {
    return overlap(works[leader.index], leader.tokens, follower) >= enough;
  });
}

}  // namespace

std::vector<Share> schedule(std::span<const Work> works, const EngineLimits& limits) {
  works = works.first(std::min<std::size_t>(works.size(), limits.parallel));
  std::vector<Share> generating;
  std::uint32_t budget = limits.batch_size;
  for (std::uint32_t i = 0; i < works.size(); ++i) {
    if (!works[i].generating) continue;
    generating.push_back({i, 1 + works[i].draft});
    budget -= 1 + works[i].draft;
  }
  if (!generating.empty()) budget = std::min(budget, limits.prefill_chunk);
  std::vector<Share> prompts;
  for (std::uint32_t i = 0; i < works.size() && budget > 0; ++i) {
    if (works[i].generating || waits(works, prompts, works[i])) continue;
    const std::uint32_t share = std::min(works[i].pending(), budget);
    prompts.push_back({i, share});
    budget -= share;
  }

  std::vector<Share> shares;
  std::merge(generating.begin(), generating.end(), prompts.begin(), prompts.end(), std::back_inserter(shares),
             [](const Share& a, const Share& b) { return a.index < b.index; });
  return shares;
}

}  // namespace pykv::engine
