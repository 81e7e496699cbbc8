// Floor 4. From logits to a token. Deterministic: same logits, parameters and draw count
// give the same token on every platform.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "pykv/types.h"

namespace pykv {

struct SamplingParams {
  float temperature = 0.8F;  // 0: greedy
  std::uint32_t top_k = 40;  // 0: off
  float top_p = 0.95F;       // 1: off
  float min_p = 0.05F;       // 0: off
  std::uint64_t seed = 0;
};
void validate(const SamplingParams& params);  // throws InvalidArgument

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;  // natural log, of the unmodified distribution (temperature 1)
};

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);
  // Order of filters as in llama.cpp: top-k, top-p, min-p, temperature, draw. Ties go to
  // the lower id. NaN logits count as minus infinity. Throws InvalidArgument if there are
  // no logits.
  Token sample(std::span<const float> logits);

 private:
  SamplingParams params_;
  std::uint64_t state_;  // splitmix64; one draw a token
  std::vector<std::pair<float, Token>> candidates_;
};

// Log-softmax of one token, and the `count` most likely ones, most likely first.
TokenLogprob logprob_of(std::span<const float> logits, Token token);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::uint32_t count);

}  // namespace pykv
