// Sampling: filters by hand-made distributions, draws by their frequencies.
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "check.h"
#include "pykv/errors.h"
#include "pykv/sampling.h"

using pykv::InvalidArgument;
using pykv::Sampler;
using pykv::SamplingParams;
using pykv::Token;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Logits of the probabilities.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
  return out;
}

SamplingParams plain() {
  SamplingParams params;
  params.temperature = 1.0F;
  params.top_k = 0;
  params.top_p = 1.0F;
  params.min_p = 0.0F;
  return params;
}

std::set<Token> seen(const SamplingParams& params, const std::vector<float>& logits) {
  Sampler sampler(params);
  std::set<Token> tokens;
  for (int i = 0; i < 2000; ++i) tokens.insert(sampler.sample(logits));
  return tokens;
}

const std::vector<float> kFive = logits_of({0.1, 0.4, 0.05, 0.25, 0.2});  // order: 1 3 4 0 2

}  // namespace

TEST(greedy_takes_the_highest_and_the_lower_id_on_ties) {
  SamplingParams params;
  params.temperature = 0.0F;
  Sampler sampler(params);
  CHECK(sampler.sample(std::vector<float>{1, 3, 3, 2}) == 1);
  CHECK(sampler.sample(std::vector<float>{kNan, -5, kNan, -4}) == 3);
  CHECK(sampler.sample(std::vector<float>{0, kInf, kInf}) == 1);
  CHECK(sampler.sample(std::vector<float>{kNan, -kInf}) == 0);
}

TEST(each_filter_keeps_what_it_should) {
  SamplingParams params = plain();
  CHECK(seen(params, kFive) == (std::set<Token>{0, 1, 2, 3, 4}));
  params.top_k = 2;
  CHECK(seen(params, kFive) == (std::set<Token>{1, 3}));
  params = plain();
  params.top_p = 0.6F;  // 0.4 + 0.25 reaches it
  CHECK(seen(params, kFive) == (std::set<Token>{1, 3}));
  params.top_p = 0.0F;
  CHECK(seen(params, kFive) == (std::set<Token>{1}));
  params = plain();
  params.min_p = 0.45F;  // of the highest: 0.18
  CHECK(seen(params, kFive) == (std::set<Token>{1, 3, 4}));
  params.min_p = 1.0F;
  CHECK(seen(params, kFive) == (std::set<Token>{1}));
}

TEST(top_p_counts_within_what_top_k_left) {
  SamplingParams params = plain();
  params.top_k = 3;     // 0.4, 0.25, 0.2: renormalized 0.47, 0.29, 0.24
  params.top_p = 0.7F;  // of the whole it would take three of them
  CHECK(seen(params, kFive) == (std::set<Token>{1, 3}));
}

TEST(ties_at_the_edge_of_top_k_go_to_the_lower_id) {
  SamplingParams params = plain();
  params.top_k = 2;
  CHECK(seen(params, {1, 2, 1, 1}) == (std::set<Token>{0, 1}));
}

TEST(frequencies_follow_the_distribution) {
  const std::vector<double> expected{0.1, 0.4, 0.05, 0.25, 0.2};
  const int draws = 200000;
  for (const std::uint32_t top_k : {0U, 5U}) {
    SamplingParams params = plain();
    params.top_k = top_k;
    params.seed = 7;
    Sampler sampler(params);
    std::vector<int> counts(5);
    for (int i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(sampler.sample(kFive))];
    double chi_square = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      const double mean = expected[i] * draws;
      chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
    }
    CHECK(chi_square < 18.5);  // 4 degrees of freedom: once in a thousand seeds
  }
}

TEST(temperature_flattens_after_the_filters) {
  SamplingParams params = plain();
  params.min_p = 0.45F;
  params.temperature = 100.0F;  // before min-p it would let all five pass
  CHECK(seen(params, kFive) == (std::set<Token>{1, 3, 4}));
  params.temperature = 1e-6F;
  CHECK(seen(params, kFive) == (std::set<Token>{1}));
}

TEST(a_seed_gives_the_same_tokens_on_every_platform) {
  SamplingParams params;
  params.seed = 42;
  Sampler first(params);
  Sampler second(params);
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 1009) / 100.0F;
  std::vector<Token> tokens;
  for (int i = 0; i < 8; ++i) {
    tokens.push_back(first.sample(logits));
    CHECK(second.sample(logits) == tokens.back());
  }
  CHECK(tokens == (std::vector<Token>{475, 798, 831, 99, 521, 264, 310, 996}));
}

TEST(infinite_and_missing_logits) {
  SamplingParams params = plain();
  CHECK(seen(params, {kNan, 0, -kInf, 0}) == (std::set<Token>{1, 3}));
  CHECK(seen(params, {0, kInf, kNan, kInf}) == (std::set<Token>{1, 3}));
  CHECK(seen(params, {kNan, -kInf}) == (std::set<Token>{0}));
  params.top_p = 0.9F;
  CHECK(seen(params, {0, kInf, kNan, kInf}) == (std::set<Token>{1, 3}));
}

TEST(log_probabilities) {
  const auto near = [](float a, double b) { return std::abs(static_cast<double>(a) - b) < 1e-6; };
  CHECK(near(pykv::logprob_of(kFive, 3).logprob, std::log(0.25)));
  const auto top = pykv::top_logprobs(kFive, 3);
  CHECK(top.size() == 3 && top[0].token == 1 && top[1].token == 3 && top[2].token == 4);
  CHECK(near(top[0].logprob, std::log(0.4)));
  CHECK(pykv::top_logprobs(kFive, 0).empty());
  CHECK(pykv::top_logprobs(kFive, 99).size() == 5);
  CHECK(pykv::logprob_of(std::vector<float>{0, kNan}, 1).logprob == -kInf);
  CHECK(pykv::logprob_of(std::vector<float>{0, kInf}, 1).logprob == 0.0F);
  CHECK(near(pykv::logprob_of(std::vector<float>{3e38F, -3e38F}, 0).logprob, 0.0));
  CHECK(pykv::top_logprobs(std::vector<float>{kNan, -kInf}, 1)[0].logprob == -kInf);
}

TEST(arguments_out_of_range) {
  const auto with = [](auto change) {
    SamplingParams params;
    change(params);
    return Sampler(params);
  };
  for (const float value : {-0.1F, kNan, kInf})
    CHECK_THROWS(InvalidArgument, with([&](SamplingParams& p) { p.temperature = value; }));
  for (const float value : {-0.1F, 1.1F, kNan}) {
    CHECK_THROWS(InvalidArgument, with([&](SamplingParams& p) { p.top_p = value; }));
    CHECK_THROWS(InvalidArgument, with([&](SamplingParams& p) { p.min_p = value; }));
  }
  CHECK_THROWS(InvalidArgument, Sampler(SamplingParams{}).sample({}));
  CHECK_THROWS(InvalidArgument, pykv::logprob_of(kFive, 5));
  CHECK_THROWS(InvalidArgument, pykv::logprob_of(kFive, -1));
  CHECK_THROWS(InvalidArgument, pykv::top_logprobs({}, 1));
}
