// Floor 4. The filters of a sampler: which candidates are left. Sums follow the order of the
// candidates, which never depends on the standard library.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "pykv/sampling.h"

namespace pykv::sampling {

using Candidate = std::pair<float, Token>;  // logit

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

float clean(float logit);                                       // NaN: minus infinity
bool more_likely(const Candidate& a, const Candidate& b);       // ties: the lower id
Candidate most_likely(std::span<const float> logits);           // {kLowest, 0} if there is none
double weight(float logit, float highest, double temperature);  // e^((logit - highest) / temperature)
double sum_of_weights(const std::vector<Candidate>& candidates, float highest, double temperature);

// The `count` (0: all) most likely of the tokens with a logit of at least `least`, most likely
// first; if `count` does not cut, in the order of their ids.
void collect(std::span<const float> logits, std::uint32_t count, float least, std::vector<Candidate>& out);

// The lowest logit that top-n-sigma lets pass: `n` standard deviations below the highest. Logits
// of minus infinity do not count. kLowest if it is off or some logit is infinite.
float sigma_threshold(std::span<const float> logits, float highest, float n);

// Locally typical sampling: keeps the tokens whose surprise -log p is nearest to its mean, until
// they have more than `typical_p` of the probability. Most likely first.
void keep_typical(std::vector<Candidate>& candidates, double typical_p, float highest);

// Top-p, then min-p. Most likely first if one of them is on.
void filter(std::vector<Candidate>& candidates, const SamplingParams& params, float highest);

}  // namespace pykv::sampling
