// The share of prompts by predicted time, with times that the test makes up.
#include "check.h"
#include "engine/step_cost.h"
#include "engine_fixture.h"

using namespace fixture;

namespace {

// A machine on which a step takes 10 ms, 1 ms for each generating token and `each` for each of a prompt.
double seconds(std::uint32_t generating, std::uint32_t prompt, double each) {
  return 0.010 + 0.001 * generating + each * prompt;
}

}  // namespace

TEST(nothing_is_known_at_first) {
  StepCost cost;
  CHECK(!cost.prompt_tokens(4, 2.5));
  cost.observe(4, 64, 0.1);  // what would it have taken without?
  CHECK(!cost.prompt_tokens(4, 2.5));
  cost.observe(4, 0, 0.014);
  CHECK(!cost.prompt_tokens(4, 2.5));
  cost.observe(4, 64, 0.078);
  CHECK(cost.prompt_tokens(4, 2.5) == 20);  // 21 in groups of 4
}

TEST(a_prompt_alone_gives_a_first_guess) {
  StepCost cost;
  cost.observe(0, 256, 0.256);
  cost.observe(4, 0, 0.016);
  CHECK(cost.prompt_tokens(4, 2.5) == 24);
  cost.observe(4, 24, 0.016 + 24 * 0.002);  // beside others it is dearer, and that counts
  for (int i = 0; i < 20; ++i) cost.observe(4, 12, 0.016 + 12 * 0.002);
  cost.observe(0, 256, 0.256);
  CHECK(cost.prompt_tokens(4, 2.5) == 12);
}

TEST(the_share_makes_the_step_as_long_as_it_may_be) {
  for (const double factor : {1.5, 2.5, 4.0}) {
    for (const std::uint32_t generating : {1U, 8U, 32U}) {
      StepCost cost;
      for (int i = 0; i < 5; ++i) cost.observe(generating, 0, seconds(generating, 0, 1e-4));
      cost.observe(generating, 64, seconds(generating, 64, 1e-4));
      for (int i = 0; i < 20; ++i) {
        const std::uint32_t share = *cost.prompt_tokens(generating, factor);
        CHECK(share >= StepCost::kLeastShare);
        cost.observe(generating, share, seconds(generating, share, 1e-4));
      }
      const std::uint32_t share = *cost.prompt_tokens(generating, factor);
      const double ratio = seconds(generating, share, 1e-4) / seconds(generating, 0, 0);
      CHECK(ratio <= factor + 1e-9 && ratio > factor - 0.1);
    }
  }
}

TEST(it_follows_a_machine_that_becomes_slower) {
  StepCost cost;
  cost.observe(8, 0, seconds(8, 0, 0));
  double each = 1e-4;
  std::uint32_t share = 64;
  for (int i = 0; i < 200; ++i) {  // a prompt's later tokens see more and cost more
    cost.observe(8, share, seconds(8, share, each));
    share = *cost.prompt_tokens(8, 2.5);
    each *= 1.01;
    CHECK(seconds(8, share, each) <= 2.7 * seconds(8, 0, 0));
  }
}

TEST(it_looks_again_how_long_a_step_without_prompts_takes) {
  StepCost cost;
  cost.observe(8, 0, 0.010);
  cost.observe(8, 64, 0.010 + 64 * 1e-3);
  double base = 0.010;
  int looks = 0;
  for (int i = 0; i < 640; ++i) {  // those who generate have longer texts and take longer
    base *= 1.001;
    const std::uint32_t share = *cost.prompt_tokens(8, 2.5);
    cost.observe(8, share, base + share * 1e-3);
    if (share == 0) ++looks;
  }
  CHECK(looks >= 19 && looks <= 20);  // one in kLookAgain
  const double took = base + *cost.prompt_tokens(8, 2.5) * 1e-3;
  CHECK(took / base > 2.0 && took / base < 2.6);
}

TEST(one_slow_step_is_soon_forgotten) {
  StepCost cost;
  for (int i = 0; i < 5; ++i) cost.observe(8, 0, 0.018);
  for (int i = 0; i < 5; ++i) cost.observe(8, 64, 0.018 + 64 * 1e-4);
  const std::uint32_t before = *cost.prompt_tokens(8, 2.5);
  cost.observe(8, 64, 5.0);
  cost.observe(8, 0, 5.0);
  CHECK(*cost.prompt_tokens(8, 2.5) < before / 2);  // perhaps the next ones will be slow, too
  for (int i = 0; i < 5; ++i) cost.observe(8, 64, 0.018 + 64 * 1e-4);
  const std::uint32_t after = *cost.prompt_tokens(8, 2.5);
  CHECK(after >= before * 3 / 4 && after <= before * 5 / 4);
}

TEST(while_the_machine_is_held_up_shares_are_small) {
  StepCost cost;
  const auto step = [&](std::uint32_t share, double slowness) {
    const double took = slowness * (0.020 + 0.002 * share);
    cost.observe(8, share, took);
    return took / 0.020;
  };
  std::uint32_t share = 10;
  step(0, 1), step(share, 1);
  for (int i = 0; i < 30; ++i) step(share = *cost.prompt_tokens(8, 2.2), 1);
  CHECK(share >= 10 && share <= 12);
  // Something takes two fifths of the machine for a while: the first step is long, the others are not.
  CHECK(step(*cost.prompt_tokens(8, 2.2), 1.7) > 3);
  for (int i = 0; i < 8; ++i) CHECK(step(*cost.prompt_tokens(8, 2.2), 1.7) < 3);
  for (int i = 0; i < 20; ++i) step(share = *cost.prompt_tokens(8, 2.2), 1);
  CHECK(share >= 9 && share <= 13);
  // It stays: then that is how fast the machine is.
  for (int i = 0; i < 640; ++i) step(share = *cost.prompt_tokens(8, 2.2), 1.7);
  CHECK(share == 0 || (share >= 9 && share <= 13));
}

TEST(a_prompt_always_goes_on) {
  StepCost cost;
  cost.observe(1, 0, 1e-6);
  cost.observe(1, 64, 1.0);
  CHECK(cost.prompt_tokens(1, 1.1) == StepCost::kLeastShare);
  StepCost free;
  free.observe(1, 0, 1.0);
  free.observe(1, 64, 0.5);  // costs nothing
  CHECK(*free.prompt_tokens(1, 2.0) > 8192);
}

TEST(the_loop_bounds_the_gap_of_those_who_generate) {
  // The clock moves by what the step computes: 10 ms and 0.1 ms for each token.
  Bench bench({.cells = 8192, .context = 8192, .limits = {.gap_factor = 2.0}});
  bench.decoder.on_forward = [&](std::size_t rows) { bench.ticks += 100 + rows; };
  for (std::uint32_t seed = 0; seed < 8; ++seed) bench.loop.submit(drawn(text(10, seed), 100, seed));
  for (int i = 0; i < 5; ++i) bench.step();
  const RequestId prompt = bench.loop.submit(greedy(text(4000, 9), 1));
  std::vector<std::uint64_t> gaps;
  while (!bench.ends.contains(prompt)) {
    const std::uint64_t begin = bench.ticks;
    bench.step();
    gaps.push_back(bench.ticks - begin);
  }
  std::sort(gaps.begin(), gaps.end());
  CHECK(gaps.back() <= 220 + 30);  // 108 without, and the looks at the clock
  CHECK(gaps.size() < 45);         // about 100 tokens a step, not fewer
  CHECK(bench.tokens[prompt] == solo_in(16384, greedy(text(4000, 9), 1)));
}

TEST(without_a_factor_the_chunk_is_fixed) {
  Bench bench({.limits = {.prefill_chunk = 24, .gap_factor = 0}});
  const RequestId first = bench.loop.submit(greedy(text(10, 1), 100));
  bench.run_until(first, 3);
  bench.loop.submit(greedy(text(100, 2), 1));
  for (const std::uint32_t rows : {25U, 25U, 25U, 25U, 5U}) {
    bench.step();
    CHECK(bench.decoder.rows.back() == rows);
  }
}
