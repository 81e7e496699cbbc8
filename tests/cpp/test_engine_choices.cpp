// Several answers to one prompt, and penalties in answers.
#include "check.h"
#include "engine_fixture.h"

using namespace fixture;

namespace {

EngineRequest several(std::uint32_t choices) {
  EngineRequest request = drawn(text(200, 1), 20, 40);
  request.choices = choices;
  return request;
}

void check_equal_to_solo(Bench& bench, RequestId first, std::uint32_t choices) {
  for (std::uint32_t i = 0; i < choices; ++i)
    CHECK(bench.tokens[first + i] == solo(drawn(text(200, 1), 20, 40 + i)));
}

}  // namespace

TEST(choices_compute_the_prompt_once_and_equal_requests_of_their_own) {
  Bench bench({});
  const RequestId first = bench.loop.submit(several(5));
  CHECK(bench.loop.submit(greedy(text(9, 2), 1)) == first + 5);
  bench.run();
  check_equal_to_solo(bench, first, 5);
  const auto snapshot = bench.loop.snapshot();
  CHECK(snapshot->computed_prompt_tokens == 209);
  CHECK(snapshot->prompt_tokens == 209);  // counted once
  CHECK(snapshot->tenants.at("default").query_tokens == 209);
  CHECK(snapshot->requests.at("length") == 6);
  CHECK(bench.started.size() == 6);
  for (RequestId id = first; id < first + 5; ++id) {
    CHECK(bench.ends[id].prompt_tokens == 200 && bench.ends[id].generated_tokens == 20);
    CHECK(bench.ends[id].cached_tokens == 0);
  }
  bench.cache.check_integrity();
}

TEST(choices_share_the_cells_of_the_prompt) {
  Bench bench({});
  bench.loop.submit(several(4));
  bench.run_until(4, 10);
  // 200 once, and for each what it has generated but for the last token.
  CHECK(bench.cache.stats().cells_active <= 200 + 4 * 10);
}

TEST(choices_beyond_parallel_wait_and_come_to_the_same_answer) {
  Bench bench({.limits = {.parallel = 2}});
  const RequestId first = bench.loop.submit(several(5));
  while (bench.step()) CHECK(bench.loop.snapshot()->generating <= 2);
  check_equal_to_solo(bench, first, 5);
  // Of the prompt only the last token is computed again, for its logits.
  CHECK(bench.loop.snapshot()->computed_prompt_tokens == 203);
  CHECK(bench.loop.snapshot()->prompt_tokens == 200);
}

TEST(choices_in_a_small_pool_come_to_the_same_answer) {
  Bench bench({.cells = 256});
  const RequestId first = bench.loop.submit(several(8));
  bench.run();
  check_equal_to_solo(bench, first, 8);
  CHECK(bench.loop.snapshot()->preempted > 0);
  bench.cache.check_integrity();
}

TEST(the_next_choice_goes_on_where_the_first_was_cancelled) {
  for (const int steps : {0, 1, 2}) {
    Bench bench({.limits = {.batch_size = 64}});
    const RequestId first = bench.loop.submit(several(3));
    for (int i = 0; i < steps; ++i) bench.step();
    bench.loop.cancel(first);
    bench.run();
    CHECK(bench.ends[first].reason == FinishReason::cancelled);
    CHECK(bench.tokens[first].empty());
    CHECK(bench.tokens[first + 1] == solo(drawn(text(200, 1), 20, 41)));
    CHECK(bench.tokens[first + 2] == solo(drawn(text(200, 1), 20, 42)));
    CHECK(bench.loop.snapshot()->computed_prompt_tokens == 200);
    CHECK(std::count(bench.started.begin(), bench.started.end(), first + 1) == 1);
    CHECK(bench.cache.sequences().empty());
  }
}

TEST(a_choice_can_be_cancelled_before_it_begins) {
  Bench bench({.limits = {.batch_size = 64}});
  const RequestId first = bench.loop.submit(several(3));
  bench.step();
  bench.loop.cancel(first + 1);
  bench.run();
  CHECK(bench.ends[first + 1].reason == FinishReason::cancelled && bench.tokens[first + 1].empty());
  CHECK(bench.tokens[first] == solo(drawn(text(200, 1), 20, 40)));
  CHECK(bench.tokens[first + 2] == solo(drawn(text(200, 1), 20, 42)));
}

TEST(a_prompt_that_fails_fails_all_its_choices) {
  Bench bench({});
  bench.decoder.poison = text(200, 1)[150];
  const RequestId first = bench.loop.submit(several(3));
  bench.run();
  for (RequestId id = first; id < first + 3; ++id) CHECK(bench.ends[id].reason == FinishReason::failed);
  CHECK(bench.cache.sequences().empty());
}

TEST(stopping_cancels_choices_that_have_not_begun) {
  Bench bench({});
  const RequestId first = bench.loop.submit(several(3));
  bench.loop.close_all();
  bench.collect();
  for (RequestId id = first; id < first + 3; ++id) CHECK(bench.ends[id].reason == FinishReason::cancelled);
}

TEST(numbers_of_choices_out_of_range) {
  Bench bench({});
  CHECK_THROWS(InvalidArgument, bench.loop.submit(several(0)));
  CHECK_THROWS(InvalidArgument, bench.loop.submit(several(129)));
  EngineRequest request = several(1);
  request.sampling.logit_bias[static_cast<Token>(kVocab)] = 1.0F;
  CHECK_THROWS(InvalidArgument, bench.loop.submit(request));
}

TEST(penalties_survive_preemption_and_crowds) {
  const auto penalized = [](std::uint32_t seed) {
    EngineRequest request = drawn(text(8, seed), 300, seed);
    request.sampling.repeat_penalty = 1.3F;
    request.sampling.presence_penalty = 0.5F;
    request.sampling.frequency_penalty = 0.2F;
    request.sampling.logit_bias[3] = -2.0F;
    return request;
  };
  Bench bench({.cells = 1024});
  for (std::uint32_t seed = 0; seed < 4; ++seed) bench.loop.submit(penalized(seed));
  bench.run();
  CHECK(bench.loop.snapshot()->preempted > 0);
  for (std::uint32_t seed = 0; seed < 4; ++seed) CHECK(bench.tokens[seed + 1] == solo(penalized(seed)));
}
