// Floor 4. From logits to a token. Deterministic: same logits, parameters and draw count
// give the same token on every platform.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "pykv/types.h"

namespace pykv {

// Names, defaults and definitions are llama.cpp's; presence and frequency penalties are OpenAI's.
struct SamplingParams {
  float temperature = 0.8F;         // 0: greedy
  std::uint32_t top_k = 40;         // 0: off
  float top_p = 0.95F;              // 1: off
  float min_p = 0.05F;              // 0: off
  float typical_p = 1;              // 1: off
  float top_n_sigma = -1;           // 0 or less: off
  float repeat_penalty = 1;         // > 0, 1: off; divides positive logits of tokens seen, multiplies others
  std::int32_t repeat_last_n = 64;  // how many of the last tokens count as seen, -1: all, 0: none
  float presence_penalty = 0;       // -2 … 2: subtracted from logits of tokens generated so far
  float frequency_penalty = 0;      // -2 … 2: the same, times how often
  std::map<Token, float> logit_bias = {};  // -100 … 100: added; minus infinity: never this token
  std::uint64_t seed = 0;
};
void validate(const SamplingParams& params);  // throws InvalidArgument

// What a token is chosen after. Nothing else beside logits and parameters has an influence, so a
// token can be chosen ahead, or again, with the same result.
struct History {
  std::span<const Token> tokens;    // prompt, then what was generated
  std::uint32_t prompt_tokens = 0;  // <= tokens.size()
};

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;  // natural log, of the unmodified distribution (temperature 1)
};

class Sampler {
 public:
  explicit Sampler(SamplingParams params);
  // Order as in llama.cpp: logit_bias, penalties (repeat, then frequency and presence),
  // top-n-sigma, top-k, typical, top-p, min-p, temperature, draw. Ties go to the lower id. NaN
  // logits count as minus infinity. Throws InvalidArgument if there are no logits.
  //
  // The draw's number is that of generated tokens. repeat_penalty sees prompt and answer, the
  // presence and frequency penalties the answer only.
  Token sample(std::span<const float> logits, const History& history);
  Token sample(std::span<const float> logits);  // nothing seen; each call is the next draw

 private:
  Token choose(std::span<const float> logits, const History& history, std::uint64_t number);
  std::span<const float> adjusted(std::span<const float> logits, const History& history);
  void apply_penalties(const History& history);
  double draw(std::uint64_t number) const;  // in [0, 1): splitmix64 of the seed

  SamplingParams params_;
  std::uint64_t draws_ = 0;
  std::vector<float> adjusted_;
  std::vector<std::pair<float, Token>> candidates_;
};

// Log-softmax of one token, and the `count` most likely ones, most likely first.
TokenLogprob logprob_of(std::span<const float> logits, Token token);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::uint32_t count);

}  // namespace pykv
