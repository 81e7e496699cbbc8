#include "model/sampling_filters.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

// The draw must be the same everywhere: IEEE double arithmetic in a fixed order, an own
// exponential instead of the C library's, and no fused multiply-add. (GCC does not fuse
// with -std=c++20; Clang would.)
#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace pykv::sampling {
namespace {

// e^x for x <= 0 within 1e-15 relative; 0 below e^-700.
double exp_nonpositive(double x) {
  if (!(x > -700.0)) return 0.0;
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 bits: n * kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr std::array kTaylor{// 1 / 13! ... 1 / 0!
                               1.6059043836821613e-10,
                               2.08767569878681e-09,
                               2.505210838544172e-08,
                               2.755731922398589e-07,
                               2.7557319223985893e-06,
                               2.48015873015873e-05,
                               0.0001984126984126984,
                               0.001388888888888889,
                               0.008333333333333333,
                               0.041666666666666664,
                               0.16666666666666666,
                               0.5,
                               1.0,
                               1.0};
  const auto n = static_cast<std::int64_t>(x * kLog2E - 0.5);  // nearest integer
  const auto n_real = static_cast<double>(n);
  const double r = (x - n_real * kLn2High) - n_real * kLn2Low;  // |r| <= ln(2) / 2
  double sum = 0.0;
  for (const double coefficient : kTaylor) sum = sum * r + coefficient;
  return sum * std::bit_cast<double>((n + 1023) << 52U);
}

// Whether `a` comes later in the order: most likely first, ties to the lower id.
bool less_likely(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first < b.first : a.second > b.second;
}

// Calls visit(i) for each logit above `least`, which visit may raise. Few are: whole blocks are passed over,
// several comparisons to an instruction.
template <class Visit>
void for_each_above(std::span<const float> logits, std::size_t first, const float& least, Visit visit) {
  constexpr std::size_t kBlock = 64;
  for (std::size_t begin = first; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    const float bound = least;
    int above = 0;
    for (const float logit : block) above |= static_cast<int>(logit > bound);
    if (above == 0) continue;
    for (std::size_t i = 0; i < block.size(); ++i)
      if (block[i] > least) visit(begin + i);
  }
}

void collect_above(std::span<const float> logits, std::uint32_t count, float least,
                   std::vector<Candidate>& out) {
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] >= least) out.emplace_back(logits[i], static_cast<Token>(i));
  if (count == 0 || count >= logits.size()) return;
  std::sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) { return less_likely(b, a); });
  if (count < out.size()) out.resize(count);
}

}  // namespace

bool more_likely(const Candidate& a, const Candidate& b) { return less_likely(b, a); }

float clean(float logit) { return std::isnan(logit) ? kLowest : logit; }

double weight(float logit, float highest, double temperature) {
  if (logit == highest) return 1.0;  // also if both are infinite
  return exp_nonpositive((static_cast<double>(logit) - static_cast<double>(highest)) / temperature);
}

double sum_of_weights(const std::vector<Candidate>& candidates, float highest, double temperature) {
  double sum = 0.0;
  for (const Candidate& candidate : candidates) sum += weight(candidate.first, highest, temperature);
  return sum;
}

Candidate most_likely(std::span<const float> logits) {
  Candidate best{kLowest, 0};
  for_each_above(logits, 0, best.first, [&](std::size_t i) { best = {logits[i], static_cast<Token>(i)}; });
  return best;
}

void collect(std::span<const float> logits, std::uint32_t count, float least, std::vector<Candidate>& out) {
  out.clear();
  if (least > kLowest) return collect_above(logits, count, least, out);
  const std::size_t keep = count == 0 ? logits.size() : std::min<std::size_t>(count, logits.size());
  out.reserve(keep);
  for (std::size_t i = 0; i < keep; ++i) out.emplace_back(clean(logits[i]), static_cast<Token>(i));
  if (keep == logits.size()) return;
  std::make_heap(out.begin(), out.end(), more_likely);  // the least likely one in front
  // Later ids lose ties, so only a higher logit displaces; NaN compares false.
  for_each_above(logits, keep, out.front().first, [&](std::size_t i) {
    std::pop_heap(out.begin(), out.end(), more_likely);
    out.back() = {logits[i], static_cast<Token>(i)};
    std::push_heap(out.begin(), out.end(), more_likely);
  });
  std::sort_heap(out.begin(), out.end(), more_likely);
}

// Both keep a front part of the order
// by likelihood, so one walk that stops at the first failure equals one pass after the
// other.
void filter(std::vector<Candidate>& candidates, const SamplingParams& params, float highest) {
  if (params.top_p >= 1.0F && params.min_p <= 0.0F) return;
  const double total = params.top_p < 1.0F ? sum_of_weights(candidates, highest, 1.0) : 0.0;
  const double enough = static_cast<double>(params.top_p) * total;
  const double least = static_cast<double>(params.min_p);
  std::make_heap(candidates.begin(), candidates.end(), less_likely);
  auto heap_end = candidates.end();
  double sum = 0.0;
  while (heap_end != candidates.begin()) {
    const double w = weight(candidates.front().first, highest, 1.0);
    const bool first = heap_end == candidates.end();
    if (!first && (w < least || (params.top_p < 1.0F && sum >= enough))) break;
    std::pop_heap(candidates.begin(), heap_end--, less_likely);
    sum += w;
  }
  candidates.erase(candidates.begin(), heap_end);
  std::reverse(candidates.begin(), candidates.end());
}

// With x = logit - highest the mean is log(sum of e^x)
// minus the mean of x, so that surprise and mean differ by x - mean(x): no logarithm is needed.
void keep_typical(std::vector<Candidate>& candidates, double typical_p, float highest) {
  const double total = sum_of_weights(candidates, highest, 1.0);
  const auto relative = [highest](float logit) {
    return logit == highest ? 0.0 : static_cast<double>(logit) - static_cast<double>(highest);
  };
  double mean = 0.0;
  for (const auto& [logit, token] : candidates) {
    const double w = weight(logit, highest, 1.0);
    if (w > 0.0) mean += w / total * relative(logit);
  }
  const auto distance = [&](const Candidate& c) { return std::abs(relative(c.first) - mean); };
  std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    const double da = distance(a), db = distance(b);
    return da != db ? da < db : more_likely(a, b);
  });
  double sum = 0.0;
  std::size_t kept = 0;
  while (kept < candidates.size() && sum <= typical_p * total)
    sum += weight(candidates[kept++].first, highest, 1.0);
  candidates.resize(kept);
  std::sort(candidates.begin(), candidates.end(), more_likely);
}

float sigma_threshold(std::span<const float> logits, float highest, float n) {
  if (n <= 0.0F) return kLowest;
  double sum = 0.0;
  std::size_t count = 0;
  for (const float logit : logits) {
    if (!(logit > kLowest)) continue;
    sum += static_cast<double>(logit);
    ++count;
  }
  const double mean = sum / static_cast<double>(count);
  double squares = 0.0;
  for (const float logit : logits) {
    if (!(logit > kLowest)) continue;
    const double off = static_cast<double>(logit) - mean;
    squares += off * off;
  }
  const double deviation = std::sqrt(squares / static_cast<double>(count));
  const double least = static_cast<double>(highest) - static_cast<double>(n) * deviation;
  return std::isfinite(least) ? static_cast<float>(least) : kLowest;  // infinite logits: no filter
}

}  // namespace pykv::sampling
