// Tokens computed ahead: answers are those without, and there are fewer steps.
#include "check.h"
#include "engine/prompt_lookup.h"
#include "engine_fixture.h"

using namespace fixture;

namespace {

using Tokens = std::vector<Token>;

Setup guessing(std::uint32_t draft_max, std::uint32_t cells = 4096) {
  return {.cells = cells, .limits = {.draft_max = draft_max}};
}

// A text that repeats itself, so that there is something to guess.
EngineRequest repetitive(std::uint32_t seed, float temperature, std::uint32_t tokens = 200) {
  Tokens prompt;
  for (int i = 0; i < 8; ++i) prompt = joined(prompt, text(12, seed));
  EngineRequest request = drawn(prompt, tokens, seed);
  request.sampling.temperature = temperature;
  return request;
}

EngineRequest penalized(std::uint32_t seed) {
  EngineRequest request = repetitive(seed, 0.3F);
  request.sampling.repeat_penalty = 1.05F;
  request.sampling.frequency_penalty = 0.02F;
  request.sampling.top_k = 5;
  return request;
}

}  // namespace

TEST(a_draft_is_what_followed_the_last_time) {
  PromptLookup lookup;
  CHECK(lookup.draft(Tokens{1, 2, 3, 4, 5, 6, 1, 2, 3}, 3) == (Tokens{4, 5, 6}));
  CHECK(lookup.draft(Tokens{1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3}, 1) == (Tokens{5}));  // the newest
  CHECK(lookup.draft(Tokens{7, 2, 3, 4, 5, 1, 2, 3}, 2) == (Tokens{4, 5}));              // two are enough
  CHECK(lookup.draft(Tokens{1, 2, 3, 4, 5, 6, 7, 8}, 4).empty());
  CHECK(lookup.draft(Tokens{1, 2, 3, 4, 5, 6, 1, 2, 3}, 0).empty());
  for (const Tokens& little : {Tokens{}, Tokens{1}, Tokens{1, 1}}) CHECK(lookup.draft(little, 4).empty());
}

TEST(a_text_that_repeats_itself_goes_on_repeating) {
  PromptLookup lookup;
  CHECK(lookup.draft(Tokens{5, 5, 5}, 4) == (Tokens{5, 5, 5, 5}));
  CHECK(lookup.draft(Tokens{1, 2, 1, 2, 1}, 4) == (Tokens{2, 1, 2, 1}));
}

TEST(drafts_grow_while_they_are_right_and_pause_while_they_are_wrong) {
  const Tokens same(100, 5);
  PromptLookup lookup;
  std::vector<std::size_t> lengths;
  for (int i = 0; i < 5; ++i) {
    lengths.push_back(lookup.draft(same, kMaxDraft).size());
    lookup.learn(static_cast<std::uint32_t>(lengths.back()), static_cast<std::uint32_t>(lengths.back()));
  }
  CHECK((lengths == std::vector<std::size_t>{4, 8, 16, 32, 32}));
  lookup.learn(32, 2);
  CHECK(lookup.draft(same, kMaxDraft).size() == 3);
  int drafts = 0;
  for (int token = 0; token < 1000; ++token) {
    if (lookup.draft(same, kMaxDraft).empty()) continue;
    ++drafts;
    lookup.learn(1, 0);
  }
  CHECK(drafts > 10 && drafts < 25);  // at last one in 64
}

TEST(greedy_and_drawn_answers_are_those_without_guesses) {
  for (const std::uint32_t draft_max : {1U, 4U, 32U}) {
    for (std::uint32_t seed = 1; seed <= 6; ++seed) {
      for (const EngineRequest& request :
           {repetitive(seed, 0.0F), repetitive(seed, 0.4F), repetitive(seed, 1.0F), penalized(seed)}) {
        Bench bench(guessing(draft_max));
        const RequestId id = bench.loop.submit(request);
        bench.run();
        CHECK(bench.tokens[id] == solo(request));
        CHECK(bench.ends[id].reason == FinishReason::length);
        CHECK(bench.loop.snapshot()->drafted_tokens > 0);
        bench.cache.check_integrity();
      }
    }
  }
}

TEST(right_guesses_save_steps) {
  Bench bench(guessing(8));
  const RequestId id = bench.loop.submit(repetitive(1, 0.0F));
  bench.run();
  const auto snapshot = bench.loop.snapshot();
  CHECK(snapshot->accepted_tokens > 0 && snapshot->accepted_tokens <= snapshot->drafted_tokens);
  CHECK(snapshot->steps == bench.tokens[id].size() - snapshot->accepted_tokens);
  CHECK(snapshot->generated_tokens == 200);
  CHECK(snapshot->prompt_tokens == 96 && snapshot->computed_prompt_tokens == 96);
}

TEST(a_crowd_with_prompts_and_a_small_pool_comes_to_the_same_answers) {
  Setup setup = guessing(8, 1024);
  setup.limits.batch_size = 40;
  setup.limits.parallel = 6;
  Bench bench(setup);
  for (std::uint32_t seed = 1; seed <= 8; ++seed) bench.loop.submit(repetitive(seed, seed % 2 ? 0.0F : 0.4F));
  while (bench.step()) {
    if (!bench.decoder.rows.empty()) CHECK(bench.decoder.rows.back() <= 40);
    CHECK(bench.cache.stats().cells_computing == 0);
  }
  for (std::uint32_t seed = 1; seed <= 8; ++seed)
    CHECK(bench.tokens[seed] == solo(repetitive(seed, seed % 2 ? 0.0F : 0.4F)));
  CHECK(bench.loop.snapshot()->accepted_tokens > 0);
  CHECK(bench.loop.snapshot()->preempted > 0);
  CHECK(bench.cache.sequences().empty());
  bench.cache.check_integrity();
}

TEST(wrong_guesses_leave_no_tokens_in_the_sequence) {
  Bench bench(guessing(16));
  const RequestId id = bench.loop.submit(repetitive(2, 1.0F));
  while (bench.step()) {
    for (const SeqId seq : bench.cache.sequences()) {
      const auto known = static_cast<Pos>(96 + bench.tokens[id].size()) - 1;
      CHECK(bench.cache.bounds(seq).end == known);
      CHECK(bench.cache.exact_upto(seq) == known);
      const CacheStats stats = bench.cache.stats();
      CHECK(stats.cells_active == static_cast<std::uint64_t>(known) && stats.cells_idle == 0);
    }
  }
  CHECK(bench.loop.snapshot()->drafted_tokens > bench.loop.snapshot()->accepted_tokens);
  CHECK(bench.cache.stats().cells_idle == 96 + bench.tokens[id].size() - 1);
  // What it generated can be matched as if nothing had been guessed.
  Tokens all = joined(repetitive(2, 1.0F).prompt, bench.tokens[id]);
  CHECK(bench.cache.match({}, all) >= all.size() - 1);
}

TEST(a_guess_that_another_answer_had_stays_with_that_answer) {
  const EngineRequest first = repetitive(2, 1.0F);
  EngineRequest second = repetitive(2, 1.0F);
  second.sampling.seed = 99;
  Bench bench(guessing(16));
  const RequestId one = bench.loop.submit(first);
  bench.run();
  const RequestId two = bench.loop.submit(second);
  bench.run();
  for (const RequestId id : {one, two}) {
    const Tokens all = joined(first.prompt, bench.tokens[id]);
    CHECK(bench.cache.match({}, all) == all.size() - 1);
  }
  bench.cache.check_integrity();
}

TEST(an_answer_may_end_within_a_draft) {
  const Tokens all = solo(repetitive(1, 0.0F));
  for (const std::uint32_t most : {1U, 2U, 3U, 17U}) {
    Bench bench(guessing(16));
    const RequestId id = bench.loop.submit(repetitive(1, 0.0F, most));
    bench.run();
    CHECK(bench.tokens[id] == Tokens(all.begin(), all.begin() + most));
    CHECK(bench.cache.sequences().empty());
  }
  EngineRequest request = repetitive(1, 0.0F);
  request.stop_tokens = {all[150]};
  Bench bench(guessing(16));
  const RequestId id = bench.loop.submit(request);
  bench.run();
  CHECK(bench.tokens[id] == solo(request));
  CHECK(bench.ends[id].reason == FinishReason::stop);
}

TEST(a_request_may_switch_it_on_and_off) {
  for (const auto& [of_engine, of_request] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 8}, {8, 0}}) {
    Bench bench(guessing(of_engine));
    EngineRequest request = repetitive(1, 0.0F);
    bench.loop.submit(request);
    bench.run();
    CHECK((bench.loop.snapshot()->drafted_tokens > 0) == (of_engine > 0));
    const std::uint64_t before = bench.loop.snapshot()->drafted_tokens;
    request.draft_max = of_request;
    bench.loop.submit(request);
    bench.run();
    CHECK((bench.loop.snapshot()->drafted_tokens > before) == (of_request > 0));
    CHECK(bench.tokens[1] == bench.tokens[2]);
  }
}

TEST(choices_guess_too) {
  Bench bench(guessing(8));
  EngineRequest request = repetitive(3, 0.4F);
  request.choices = 4;
  const RequestId first = bench.loop.submit(request);
  bench.run();
  for (std::uint32_t i = 0; i < 4; ++i) {
    EngineRequest alone = repetitive(3, 0.4F);
    alone.sampling.seed += i;
    CHECK(bench.tokens[first + i] == solo(alone));
  }
}

TEST(log_probabilities_come_for_every_token) {
  const auto run = [](std::uint32_t draft_max) {
    Bench bench(guessing(draft_max));
    EngineRequest request = repetitive(1, 0.4F);
    request.logprobs = 3;
    bench.loop.submit(request);
    std::vector<EngineEvent> events;
    while (bench.loop.step())
      for (EngineEvent& event : bench.loop.drain())
        if (event.kind == EngineEvent::Kind::token) events.push_back(std::move(event));
    return events;
  };
  const auto with = run(8), without = run(0);
  CHECK(with.size() == without.size());
  for (std::size_t i = 0; i < with.size(); ++i) {
    CHECK(with[i].token == without[i].token && with[i].logprob == without[i].logprob);
    for (std::size_t k = 0; k < 3; ++k) CHECK(with[i].top[k].logprob == without[i].top[k].logprob);
  }
}

TEST(lengths_of_drafts_out_of_range) {
  Bench bench({});
  EngineRequest request = repetitive(1, 0.0F);
  request.draft_max = 33;
  CHECK_THROWS(InvalidArgument, bench.loop.submit(request));
  CHECK_THROWS(InvalidArgument, bench.loop.set_limits({.draft_max = 33}));
}
