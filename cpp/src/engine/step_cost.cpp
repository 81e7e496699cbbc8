#include "engine/step_cost.h"

#include <algorithm>

namespace pykv::engine {

namespace {

constexpr double kWeight = 0.2;    // of the newest observation
constexpr double kOutlier = 1.25;  // a step that the system held up counts at most so many times
constexpr double kNewestDelay = 0.5;
constexpr double kMostDelay = 2;
constexpr double kUsualDelay = 1.1;  // as much as steps differ anyway
constexpr std::uint32_t kRound = 4;  // kernels take rows in groups; below that a row counts

void learn(double& estimate, double seconds) {
  estimate += kWeight * (std::min(seconds, kOutlier * estimate) - estimate);
}

}  // namespace

void StepCost::observe(std::uint32_t generating, std::uint32_t prompt, double seconds) {
  if (seconds <= 0) return;
  if (generating == 0) {  // in large chunks a token costs less, but that is near enough to begin with
    if (!prompt_token_) prompt_token_ = seconds / prompt;
    return;
  }
  if (prompt == 0) {
    since_without_ = 0;
    const auto [place, added] = without_prompt_.try_emplace(generating, seconds);
    if (!added) learn(place->second, seconds);
    return;
  }
  ++since_without_;
  const std::optional<double> base = without_prompt(generating);
  if (!base) return;
  if (prompt_token_) {
    const double predicted = *base + prompt * *prompt_token_;
    delay_ += kNewestDelay * (std::min(seconds / predicted, kMostDelay) - delay_);
  }
  const double each = std::max(seconds - *base, 0.0) / prompt;
  if (prompt_token_ && *prompt_token_ > 0)
    learn(*prompt_token_, each);
  else
    prompt_token_ = each;
}

std::optional<double> StepCost::without_prompt(std::uint32_t generating) const {
  // Fewer tokens take no longer, so that the nearest smaller number errs on the short side.
  auto place = without_prompt_.upper_bound(generating);
  if (place == without_prompt_.begin()) return std::nullopt;
  return std::prev(place)->second;
}

std::optional<std::uint32_t> StepCost::prompt_tokens(std::uint32_t generating, double factor) const {
  const std::optional<double> base = without_prompt(generating);
  if (!base || !prompt_token_) return std::nullopt;
  if (since_without_ >= kLookAgain) return 0;
  const double bearable = delay_ > kUsualDelay ? factor / delay_ : factor;
  const double tokens = std::max(bearable - 1.0, 0.0) * *base / std::max(*prompt_token_, 1e-12);
  if (tokens >= 1e6) return 1000000;
  const auto whole = static_cast<std::uint32_t>(tokens);
  return std::max(kLeastShare, whole < 4 * kRound ? whole : whole / kRound * kRound);
}

}  // namespace pykv::engine
