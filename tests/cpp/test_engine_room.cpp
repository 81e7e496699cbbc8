// The step loop when cells run out.
#include "check.h"
#include "engine_fixture.h"

using namespace fixture;

TEST(four_sessions_in_too_small_a_pool_all_end_with_their_solo_tokens) {  // C9, C27
  for (const bool draw : {false, true}) {
    Bench bench({.cells = 1024, .limits = {.parallel = 4}});
    std::vector<EngineRequest> requests;
    for (std::uint32_t i = 0; i < 4; ++i)
      requests.push_back(draw ? drawn(text(8, i + 1), 300, i) : greedy(text(8, i + 1), 300));
    for (const auto& request : requests) bench.loop.submit(request);
    bench.run();
    for (RequestId id = 1; id <= 4; ++id) {
      CHECK(bench.ends[id].reason == FinishReason::length);
      CHECK(bench.tokens[id] == solo(requests[id - 1]));
      CHECK(bench.ends[id].cached_tokens == 0);
    }
    CHECK(bench.finished.back() == 4);  // the youngest gave way
    const auto snapshot = bench.loop.snapshot();
    CHECK(snapshot->preempted == 1 && snapshot->resumed == 1);
    CHECK(snapshot->tenants.at("default").query_tokens == 32);  // recomputing is neither hit nor miss
    CHECK(snapshot->tenants.at("default").hit_tokens == 0);
    CHECK(snapshot->prompt_tokens == 32);
    CHECK(snapshot->computed_prompt_tokens > 32);
    CHECK(snapshot->generated_tokens == 1200);
    CHECK(snapshot->cache.evicted_cells_demand > 0);
    bench.cache.check_integrity();
  }
}

TEST(the_lowest_priority_gives_way) {
  Bench bench({.cells = 512, .limits = {.parallel = 3}});
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 3; ++i) requests.push_back(greedy(text(8, i + 1), 250));
  requests[1].priority = -1;
  for (const auto& request : requests) bench.loop.submit(request);
  bench.run();
  CHECK(bench.finished.back() == 2);
  for (RequestId id = 1; id <= 3; ++id) CHECK(bench.tokens[id] == solo(requests[id - 1]));
}

TEST(a_tiny_pool_makes_progress_with_many_requests) {
  Bench bench({.cells = 128, .limits = {.parallel = 8, .batch_size = 64}});
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 20; ++i) requests.push_back(greedy(text(20 + 4 * i, i % 5), 60));
  for (const auto& request : requests) bench.loop.submit(request);
  bench.run();
  CHECK(bench.finished.size() == 20);
  for (RequestId id = 1; id <= 20; ++id) {
    CHECK(bench.ends[id].reason == FinishReason::length);
    const std::vector<Token> whole = solo(requests[id - 1]);
    const std::size_t room = std::min<std::size_t>(60, 128 - requests[id - 1].prompt.size() + 1);
    CHECK((bench.tokens[id] ==
           std::vector<Token>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(room))));
  }
  const auto snapshot = bench.loop.snapshot();
  CHECK(snapshot->preempted == snapshot->resumed);
  bench.cache.check_integrity();
}

TEST(a_resumed_session_is_not_preempted_over_and_over) {
  Bench bench({.cells = 1024, .limits = {.parallel = 8}});
  for (std::uint32_t i = 0; i < 8; ++i) bench.loop.submit(greedy(text(8, i + 1), 400));
  bench.run();
  CHECK(bench.finished.size() == 8);
  CHECK(bench.loop.snapshot()->preempted < 8);
  CHECK(bench.loop.snapshot()->computed_prompt_tokens < 1200);
  // While there is no more room than before, a waiting one is not looked up every step.
  CHECK(bench.cache.stats().match_query_tokens < 10000);
}

TEST(a_prompt_that_can_never_fit_is_refused_with_both_numbers) {
  Bench bench({.cells = 128});
  try {
    bench.loop.submit(greedy(text(129, 1), 5));
    CHECK(false);
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    CHECK(message.find("[Engine.submit]") == 0);
    CHECK(message.find("129") != std::string::npos && message.find("128") != std::string::npos);
  }
  bench.loop.submit(greedy(text(128, 1), 5));
  bench.run();
  CHECK(bench.tokens[1].size() == 1 && bench.ends[1].reason == FinishReason::length);
}

TEST(idle_prefixes_give_way_before_anybody_is_preempted) {
  Bench bench({.cells = 512});
  bench.loop.submit(greedy(text(400, 1), 2));
  bench.run();
  bench.loop.submit(greedy(text(300, 2), 100));
  bench.run();
  const auto snapshot = bench.loop.snapshot();
  CHECK(bench.ends[2].reason == FinishReason::length);
  CHECK(snapshot->preempted == 0);
  CHECK(snapshot->cache.evicted_cells_demand > 0);
}

TEST(reclaim_keeps_the_low_watermark_free) {
  Bench bench({.cells = 1024});
  bench.loop.set_watermarks({.low = 0.25, .high = 0.5});
  for (std::uint32_t i = 0; i < 8; ++i) {
    bench.loop.submit(greedy(text(150, i + 1), 2));
    bench.run();
    CHECK(bench.loop.snapshot()->cache.cells_free >= 256);
  }
  const auto snapshot = bench.loop.snapshot();
  CHECK(snapshot->cache.evicted_cells_watermark > 0);
  CHECK(snapshot->cache.reclaim_ticks > 0 && snapshot->reclaim_duration.sum > 0);
}

TEST(who_runs_alone_and_cannot_fit_beside_outsiders_fails_alone) {
  Bench bench({.cells = 256});
  const SeqId outsider = bench.cache.create();
  {
    const StepRequest part{.seq = outsider, .count = 200, .tokens = {}};
    Step step = bench.cache.commit(*bench.cache.plan(std::span(&part, 1)));
    const std::vector<Token> tokens = text(200, 9);
    std::vector<float> logits;
    bench.decoder.forward(step, tokens, {}, logits);
    step.finish();
  }
  const RequestId large = bench.loop.submit(greedy(text(100, 1), 5));
  const RequestId small = bench.loop.submit(greedy(text(20, 2), 5));
  bench.run();
  CHECK(bench.ends[large].reason == FinishReason::failed);
  CHECK(bench.ends[large].error.find("outside the engine") != std::string::npos);
  CHECK(bench.ends[small].reason == FinishReason::length);
  CHECK(bench.cache.bounds(outsider).end == 200);
}
