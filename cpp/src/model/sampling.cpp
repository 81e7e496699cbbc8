#include "pykv/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "pykv/errors.h"

// The draw must be the same everywhere: IEEE double arithmetic in a fixed order, an own
// exponential instead of the C library's, and no fused multiply-add. (GCC does not fuse
// with -std=c++20; Clang would.)
#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace pykv {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

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

std::uint64_t splitmix64(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

using Candidate = std::pair<float, Token>;

// Whether `a` comes later in the order: most likely first, ties to the lower id.
bool less_likely(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first < b.first : a.second > b.second;
}
bool more_likely(const Candidate& a, const Candidate& b) { return less_likely(b, a); }

float clean(float logit) { return std::isnan(logit) ? kLowest : logit; }

// Weight of a logit relative to the highest one, at a temperature.
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
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > best.first) best = {logits[i], static_cast<Token>(i)};
  return best;
}

void check_logits(std::span<const float> logits, const char* where) {
  if (logits.empty() || logits.size() > static_cast<std::size_t>(std::numeric_limits<Token>::max()))
    throw InvalidArgument("[" + std::string(where) + "] got " + std::to_string(logits.size()) +
                          " logits; pass one per vocabulary entry");
}

// The `count` most likely tokens, most likely first; if that is all (or count is 0), in
// the order of their ids. Never in an order that depends on the standard library, because
// sums over the candidates follow it.
void collect(std::span<const float> logits, std::uint32_t count, std::vector<Candidate>& out) {
  out.clear();
  const std::size_t keep = count == 0 ? logits.size() : std::min<std::size_t>(count, logits.size());
  out.reserve(keep);
  for (std::size_t i = 0; i < keep; ++i) out.emplace_back(clean(logits[i]), static_cast<Token>(i));
  if (keep == logits.size()) return;
  std::make_heap(out.begin(), out.end(), more_likely);  // the least likely one in front
  for (std::size_t i = keep; i < logits.size(); ++i) {
    // Later ids lose ties, so only a higher logit displaces; NaN compares false.
    if (!(logits[i] > out.front().first)) continue;
    std::pop_heap(out.begin(), out.end(), more_likely);
    out.back() = {logits[i], static_cast<Token>(i)};
    std::push_heap(out.begin(), out.end(), more_likely);
  }
  std::sort_heap(out.begin(), out.end(), more_likely);
}

// Drops the candidates that fail top-p or min-p. Both keep a front part of the order
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

// log of the sum of e^logit.
double log_sum_exp(std::span<const float> logits) {
  const float highest = most_likely(logits).first;
  double sum = 0.0;
  for (const float logit : logits) {
    const float value = clean(logit);
    sum += value == highest ? 1.0 : std::exp(static_cast<double>(value) - static_cast<double>(highest));
  }
  return static_cast<double>(highest) + std::log(sum);
}

float logprob(float logit, double log_sum) {
  const float value = clean(logit);
  if (value == kLowest) return kLowest;
  // Both infinite: the token shares all of the probability.
  if (std::isinf(value)) return 0.0F;
  return static_cast<float>(std::min(0.0, static_cast<double>(value) - log_sum));
}

[[noreturn]] void fail(const char* name, double value, const char* allowed) {
  throw InvalidArgument("[SamplingParams] " + std::string(name) + " is " + std::to_string(value) +
                        ", allowed is " + allowed);
}

}  // namespace

void validate(const SamplingParams& params) {
  if (!std::isfinite(params.temperature) || params.temperature < 0.0F)
    fail("temperature", static_cast<double>(params.temperature), "any finite number from 0 (greedy)");
  if (!(params.top_p >= 0.0F && params.top_p <= 1.0F))
    fail("top_p", static_cast<double>(params.top_p), "0 to 1 (off)");
  if (!(params.min_p >= 0.0F && params.min_p <= 1.0F))
    fail("min_p", static_cast<double>(params.min_p), "0 (off) to 1");
}

Sampler::Sampler(const SamplingParams& params) : params_(params), state_(params.seed) { validate(params); }

Token Sampler::sample(std::span<const float> logits) {
  check_logits(logits, "Sampler.sample");
  const Candidate best = most_likely(logits);
  if (params_.temperature == 0.0F) return best.second;
  const double draw = static_cast<double>(splitmix64(state_) >> 11U) * 0x1.0p-53;
  if (best.first == kLowest) return best.second;

  collect(logits, params_.top_k, candidates_);
  filter(candidates_, params_, best.first);

  const auto temperature = static_cast<double>(params_.temperature);
  const double target = draw * sum_of_weights(candidates_, best.first, temperature);
  double sum = 0.0;
  for (const Candidate& candidate : candidates_) {
    sum += weight(candidate.first, best.first, temperature);
    if (sum > target) return candidate.second;
  }
  return best.second;  // draw < 1, so only a rounded sum leads here
}

TokenLogprob logprob_of(std::span<const float> logits, Token token) {
  check_logits(logits, "logprob_of");
  if (token < 0 || static_cast<std::size_t>(token) >= logits.size())
    throw InvalidArgument("[logprob_of] token " + std::to_string(token) + " is outside the vocabulary of " +
                          std::to_string(logits.size()) + " entries");
  return {token, logprob(logits[static_cast<std::size_t>(token)], log_sum_exp(logits))};
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::uint32_t count) {
  check_logits(logits, "top_logprobs");
  if (count == 0) return {};
  const double log_sum = log_sum_exp(logits);
  std::vector<Candidate> best;
  collect(logits, count, best);
  std::sort(best.begin(), best.end(), more_likely);
  std::vector<TokenLogprob> out;
  out.reserve(best.size());
  for (const auto& [logit, token] : best) out.push_back({token, logprob(logit, log_sum)});
  return out;
}

}  // namespace pykv
