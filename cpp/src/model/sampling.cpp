#include "pykv/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "model/sampling_filters.h"
#include "pykv/errors.h"

// The draw must be the same everywhere: IEEE double arithmetic in a fixed order, no fused multiply-add. (GCC
// does not fuse with -std=c++20; Clang would.)
#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace pykv {
namespace {

using namespace sampling;

// The number `n` of the sequence that splitmix64 gives from a seed.
std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

void check_logits(std::span<const float> logits, const char* where) {
  if (logits.empty() || logits.size() > static_cast<std::size_t>(std::numeric_limits<Token>::max()))
    throw InvalidArgument("[" + std::string(where) + "] got " + std::to_string(logits.size()) +
                          " logits; pass one per vocabulary entry");
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
  const auto check = [](const char* name, float value, float low, float high, const char* allowed) {
    if (!(value >= low && value <= high)) fail(name, static_cast<double>(value), allowed);
  };
  constexpr float kMost = std::numeric_limits<float>::max();
  check("temperature", params.temperature, 0.0F, kMost, "any finite number from 0 (greedy)");
  check("top_p", params.top_p, 0.0F, 1.0F, "0 to 1 (off)");
  check("min_p", params.min_p, 0.0F, 1.0F, "0 (off) to 1");
  check("typical_p", params.typical_p, 0.0F, 1.0F, "0 to 1 (off)");
  check("top_n_sigma", params.top_n_sigma, -kMost, kMost, "any finite number; 0 and less are off");
  check("repeat_penalty", params.repeat_penalty, 1e-3F, 1e3F, "0.001 to 1000; 1 is off");
  check("presence_penalty", params.presence_penalty, -2.0F, 2.0F, "-2 to 2; 0 is off");
  check("frequency_penalty", params.frequency_penalty, -2.0F, 2.0F, "-2 to 2; 0 is off");
  if (params.repeat_last_n < -1)
    fail("repeat_last_n", params.repeat_last_n, "-1 (all tokens), 0 (off) or more");
  for (const auto& [token, bias] : params.logit_bias)
    if (bias != kLowest)
      check(("logit_bias of token " + std::to_string(token)).c_str(), bias, -100.0F, 100.0F,
            "-100 to 100, or minus infinity (never this token)");
}

Sampler::Sampler(SamplingParams params) : params_(std::move(params)) { validate(params_); }

double Sampler::draw(std::uint64_t number) const {
  return static_cast<double>(splitmix64(params_.seed, number) >> 11U) * 0x1.0p-53;
}

std::span<const float> Sampler::adjusted(std::span<const float> logits, const History& history) {
  const bool repeats = params_.repeat_penalty != 1.0F && params_.repeat_last_n != 0;
  const bool penalties = repeats || params_.presence_penalty != 0.0F || params_.frequency_penalty != 0.0F;
  if (params_.logit_bias.empty() && !penalties) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : params_.logit_bias) {
    if (token < 0 || static_cast<std::size_t>(token) >= logits.size())
      throw InvalidArgument("[Sampler.sample] logit_bias has token " + std::to_string(token) +
                            "; token ids of this model are 0 to " + std::to_string(logits.size() - 1));
    float& logit = adjusted_[static_cast<std::size_t>(token)];
    logit = bias == kLowest ? kLowest : logit + bias;
  }
  if (penalties) apply_penalties(history);
  return adjusted_;
}

void Sampler::apply_penalties(const History& history) {
  struct Seen {
    bool repeated = false;
    std::uint32_t generated = 0;
  };
  std::unordered_map<Token, Seen> seen;
  const std::span<const Token> tokens = history.tokens;
  const auto last_n =
      params_.repeat_last_n < 0 ? tokens.size() : std::min<std::size_t>(tokens.size(), params_.repeat_last_n);
  if (params_.repeat_penalty != 1.0F)
    for (const Token token : tokens.last(last_n)) seen[token].repeated = true;
  for (const Token token : tokens.subspan(history.prompt_tokens)) ++seen[token].generated;
  for (const auto& [token, facts] : seen) {
    if (token < 0 || static_cast<std::size_t>(token) >= adjusted_.size()) continue;
    float& logit = adjusted_[static_cast<std::size_t>(token)];
    auto value = static_cast<double>(logit);
    const auto repeat = static_cast<double>(params_.repeat_penalty);
    if (facts.repeated) value = value <= 0.0 ? value * repeat : value / repeat;
    value -= facts.generated * static_cast<double>(params_.frequency_penalty);
    if (facts.generated > 0) value -= static_cast<double>(params_.presence_penalty);
    logit = static_cast<float>(value);
  }
}

Token Sampler::sample(std::span<const float> logits) { return choose(logits, {}, draws_++); }

Token Sampler::sample(std::span<const float> logits, const History& history) {
  return choose(logits, history, history.tokens.size() - history.prompt_tokens);
}

Token Sampler::choose(std::span<const float> given, const History& history, std::uint64_t number) {
  check_logits(given, "Sampler.sample");
  const std::span<const float> logits = adjusted(given, history);
  const Candidate best = most_likely(logits);
  const bool typical = params_.typical_p < 1.0F;
  if (best.first == kLowest || (params_.temperature == 0.0F && !typical)) return best.second;

  const float least = sigma_threshold(logits, best.first, params_.top_n_sigma);
  collect(logits, params_.top_k, least, candidates_);
  if (typical) keep_typical(candidates_, static_cast<double>(params_.typical_p), best.first);
  // Typical sampling may have dropped the most likely one; the others never do.
  const Candidate front = typical ? candidates_.front() : best;
  if (params_.temperature == 0.0F) return front.second;
  filter(candidates_, params_, front.first);

  const auto temperature = static_cast<double>(params_.temperature);
  const double target = draw(number) * sum_of_weights(candidates_, front.first, temperature);
  double sum = 0.0;
  for (const Candidate& candidate : candidates_) {
    sum += weight(candidate.first, front.first, temperature);
    if (sum > target) return candidate.second;
  }
  return front.second;  // draw < 1, so only a rounded sum leads here
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
  collect(logits, count, kLowest, best);
  std::sort(best.begin(), best.end(), more_likely);
  std::vector<TokenLogprob> out;
  out.reserve(best.size());
  for (const auto& [logit, token] : best) out.push_back({token, logprob(logit, log_sum)});
  return out;
}

}  // namespace pykv
