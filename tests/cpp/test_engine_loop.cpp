// The step loop when there is room for all.
#include "check.h"
#include "engine_fixture.h"

using namespace fixture;

namespace {

std::uint64_t hits(const Bench& bench) {
  std::uint64_t sum = 0;
  for (const auto& [name, counters] : bench.loop.snapshot()->tenants) sum += counters.hit_tokens;
  return sum;
}

bool adds_up(const EngineSnapshot& s) {
  const CacheStats& c = s.cache;
  const std::uint64_t cells =
      c.cells_computing + c.cells_active + c.cells_pinned + c.cells_resume + c.cells_idle + c.cells_free;
  for (const auto& [name, counters] : s.tenants) {
    std::uint64_t sum = counters.hit_tokens;
    for (const auto& [reason, count] : counters.miss_tokens) sum += count;
    if (sum != counters.query_tokens) return false;
  }
  return cells == c.cells_capacity;
}

}  // namespace

TEST(a_request_starts_generates_and_ends) {
  Bench bench({});
  const RequestId id = bench.loop.submit(greedy(text(20, 1), 5));
  bench.run();
  CHECK(id == 1);
  CHECK(bench.started == std::vector<RequestId>{id});
  CHECK(bench.tokens[id].size() == 5);
  const EngineEvent& end = bench.ends[id];
  CHECK(end.reason == FinishReason::length);
  CHECK(end.prompt_tokens == 20 && end.cached_tokens == 0 && end.generated_tokens == 5);
  CHECK(end.queue_seconds > 0 && end.prompt_seconds > 0 && end.generate_seconds > 0);
  const auto snapshot = bench.loop.snapshot();
  CHECK(snapshot->steps == 5);  // the prompt's step gives the first token
  CHECK(snapshot->requests.at("length") == 1);
  CHECK(snapshot->prompt_tokens == 20 && snapshot->computed_prompt_tokens == 20);
  CHECK(snapshot->generated_tokens == 5);
  CHECK(snapshot->sessions.empty());
  CHECK(snapshot->cache.cells_active == 0 && snapshot->cache.cells_idle == 24);
  CHECK(adds_up(*snapshot));
}

TEST(generation_ends_with_a_stop_token) {
  const std::vector<Token> all = solo(greedy(text(20, 1), 30));
  EngineRequest request = greedy(text(20, 1), 30);
  request.stop_tokens = {all[7]};
  const auto first = static_cast<std::size_t>(std::find(all.begin(), all.end(), all[7]) - all.begin());
  Bench bench({});
  const RequestId id = bench.loop.submit(request);
  bench.run();
  CHECK(bench.ends[id].reason == FinishReason::stop);
  CHECK((bench.tokens[id] ==
         std::vector<Token>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first) + 1)));
}

TEST(logprobs_come_with_the_tokens_that_asked_for_them) {
  Bench bench({});
  EngineRequest request = greedy(text(20, 1), 3);
  request.logprobs = 4;
  bench.loop.submit(request);
  bench.loop.submit(greedy(text(20, 2), 3));
  std::size_t with = 0;
  while (bench.loop.step()) {
    for (const EngineEvent& event : bench.loop.drain()) {
      if (event.kind != EngineEvent::Kind::token) continue;
      if (event.request == 2) CHECK(event.top.empty() && event.logprob == 0);
      if (event.request != 1) continue;
      ++with;
      CHECK(event.top.size() == 4);
      CHECK(event.top[0].token == event.token && event.top[0].logprob == event.logprob);
      CHECK(event.logprob < 0 && event.top[1].logprob <= event.logprob);
    }
  }
  CHECK(with == 3);
}

TEST(a_live_session_lends_its_prefix) {  // C1
  Bench bench({});
  const std::vector<Token> common = text(300, 1);
  const RequestId first = bench.loop.submit(greedy(joined(common, text(10, 2)), 200));
  bench.run_until(first, 5);
  bench.decoder.rows.clear();
  const EngineRequest follower = greedy(joined(common, text(12, 3)), 4);
  const RequestId second = bench.loop.submit(follower);
  bench.step();
  CHECK(bench.decoder.rows == std::vector<std::uint32_t>{1 + 12});
  bool shared = false;
  for (const SeqId seq : bench.cache.sequences()) shared = shared || bench.cache.shared_cells(seq) >= 300;
  CHECK(shared);
  CHECK(bench.loop.snapshot()->generating == 2);
  bench.run_until(second, 4);
  CHECK(bench.ends[second].cached_tokens == 300);
  CHECK(bench.ends[first].cached_tokens == 0);
  CHECK(bench.tokens[second] == solo(follower));
  CHECK(hits(bench) == 300);
}

TEST(a_hit_never_consumes_what_it_hit) {  // C2
  Bench bench({});
  const std::vector<Token> system = text(100, 1), a = joined(system, text(50, 2)),
                           c = joined(system, text(50, 3));
  for (const auto& prompt : {a, c, a}) {
    bench.loop.submit(greedy(prompt, 3));
    bench.run();
  }
  CHECK(bench.ends[2].cached_tokens == 100);
  CHECK(bench.ends[3].cached_tokens == 149);
  const auto counters = bench.loop.snapshot()->tenants.at("default");
  CHECK(counters.query_tokens == 450);
  CHECK(counters.hit_tokens == 249);
  CHECK(counters.miss_tokens.at("first_seen") == 200);
  CHECK(counters.miss_tokens.at("last_token") == 1);
  CHECK(bench.tokens[1] == bench.tokens[3]);
  CHECK(adds_up(*bench.loop.snapshot()));
}

TEST(identical_prompts_at_the_same_moment_are_computed_once) {
  for (const std::uint32_t length : {6U, 90U, 700U}) {
    Bench bench({});
    for (int i = 0; i < 3; ++i) bench.loop.submit(greedy(text(length, 1), 3));
    bench.run();
    CHECK(bench.loop.snapshot()->computed_prompt_tokens == length + 2);
    CHECK(hits(bench) == 2 * (length - 1));
    CHECK(bench.ends[3].cached_tokens == length - 1);
    CHECK(bench.tokens[1] == bench.tokens[2] && bench.tokens[2] == bench.tokens[3]);
    CHECK(adds_up(*bench.loop.snapshot()));
  }
}

TEST(a_prompt_in_progress_takes_over_what_others_computed) {
  // The second starts with few tokens in common, then the first (longer) overtakes it.
  Bench bench({.limits = {.parallel = 4, .batch_size = 32, .prefill_chunk = 32}});
  const std::vector<Token> common = text(400, 1);
  bench.loop.submit(greedy(joined(common, text(20, 2)), 2));
  bench.step();
  bench.loop.submit(greedy(joined(common, text(20, 3)), 2));
  bench.run();
  CHECK(bench.ends[2].cached_tokens == 400);
  CHECK(bench.loop.snapshot()->computed_prompt_tokens == 440);
}

TEST(namespaces_and_use_cache_false_share_nothing) {
  Bench bench({});
  EngineRequest request = greedy(text(80, 1), 2);
  bench.loop.submit(request);
  bench.run();
  request.name_space = NamespaceId{7};
  const RequestId other = bench.loop.submit(request);
  request.name_space = {};
  request.use_cache = false;
  const RequestId cold = bench.loop.submit(request);
  bench.run();
  CHECK(bench.ends[other].cached_tokens == 0);
  CHECK(bench.ends[cold].cached_tokens == 0);
  CHECK(bench.tokens[cold] == bench.tokens[1] && bench.tokens[other] == bench.tokens[1]);
}

TEST(a_long_prompt_blocks_nobody) {
  const EngineLimits limits{.parallel = 8, .batch_size = 64, .prefill_chunk = 16, .gap_factor = 0};
  Bench bench({.limits = limits});
  std::vector<RequestId> generating;
  for (std::uint32_t i = 0; i < 3; ++i) generating.push_back(bench.loop.submit(greedy(text(10, i + 1), 400)));
  bench.run_until(generating.back(), 2);
  bench.decoder.rows.clear();
  const RequestId longer = bench.loop.submit(greedy(text(1000, 9), 1));
  std::size_t steps = 0;
  while (bench.ends.count(longer) == 0) {
    const auto before = bench.tokens;
    bench.step();
    ++steps;
    for (const RequestId id : generating) CHECK(bench.tokens[id].size() == before.at(id).size() + 1);
  }
  CHECK(steps == (1000 + 15) / 16);
  for (const std::uint32_t rows : bench.decoder.rows) CHECK(rows <= 3 + 16);
  bench.decoder.rows.clear();
  Bench alone({.limits = limits});
  alone.loop.submit(greedy(text(1000, 9), 1));
  alone.step();
  CHECK(alone.decoder.rows == std::vector<std::uint32_t>{64});  // beside nobody: the whole budget
}

TEST(idle_and_other_sessions_cost_a_step_nothing) {  // C15
  Bench bench({});
  for (std::uint32_t i = 0; i < 3; ++i) bench.loop.submit(greedy(text(900, i + 1), 2));
  bench.run();
  const RequestId active = bench.loop.submit(greedy(text(40, 9), 10));
  bench.run_until(active, 5);
  std::uint32_t cells = 0;
  for (const Segment& segment : bench.decoder.attention.segments) cells += segment.length;
  CHECK(bench.loop.snapshot()->cache.cells_idle >= 2700);
  CHECK(bench.decoder.attention.groups.size() == 1);
  CHECK(cells == 40 + 4);  // its own length, whatever else is in the pool
}

TEST(tokens_alone_and_in_a_crowd_are_equal) {
  Bench bench({.limits = {.parallel = 6, .batch_size = 24, .prefill_chunk = 7}});
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 12; ++i)
    requests.push_back(drawn(joined(text(60, i % 3), text(5 + 3 * i, 50 + i)), 20, i));
  std::vector<RequestId> ids;
  for (const auto& request : requests) ids.push_back(bench.loop.submit(request));
  bench.run();
  for (std::size_t i = 0; i < ids.size(); ++i) CHECK(bench.tokens[ids[i]] == solo(requests[i]));
  bench.cache.check_integrity();
}

TEST(cancelling_frees_the_cells_within_one_step) {
  Bench bench({.limits = {.parallel = 2}});
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 3; ++i) ids.push_back(bench.loop.submit(greedy(text(50, i + 1), 100)));
  bench.run_until(ids[1], 3);
  const auto kept = bench.tokens[ids[1]].size();
  bench.loop.cancel(ids[0]);  // running
  bench.loop.cancel(ids[2]);  // waiting
  bench.loop.cancel(99);      // unknown
  bench.step();
  CHECK((bench.finished == std::vector<RequestId>{ids[0], ids[2]}));
  CHECK(bench.ends[ids[0]].reason == FinishReason::cancelled);
  CHECK(bench.ends[ids[2]].reason == FinishReason::cancelled && bench.ends[ids[2]].generated_tokens == 0);
  CHECK(bench.cache.sequences().size() == 1);
  CHECK(bench.tokens[ids[1]].size() == kept + 1);
  CHECK(bench.loop.snapshot()->requests.at("cancelled") == 2);
  bench.loop.cancel(ids[1]);
  bench.step();
  CHECK(bench.loop.snapshot()->cache.cells_active == 0);
  bench.loop.cancel(ids[1]);  // ended
  bench.step();
  CHECK(bench.finished.size() == 3);
}

TEST(priority_goes_first_then_arrival) {
  Bench bench({.limits = {.parallel = 1}});
  EngineRequest urgent = greedy(text(10, 1), 2);
  urgent.priority = 5;
  bench.loop.submit(greedy(text(10, 2), 2));
  bench.loop.submit(greedy(text(10, 3), 2));
  bench.loop.submit(urgent);
  bench.run();
  CHECK((bench.finished == std::vector<RequestId>{3, 1, 2}));
}

TEST(a_full_queue_is_busy_and_bad_requests_are_refused) {
  Bench bench({.cells = 128, .context = 100, .limits = {.parallel = 1, .queue_length = 2}});
  const auto refused = [&](const std::function<void(EngineRequest&)>& spoil) {
    EngineRequest request = greedy(text(5, 1), 5);
    spoil(request);
    CHECK_THROWS(InvalidArgument, bench.loop.submit(request));
  };
  refused([](EngineRequest& r) { r.prompt.clear(); });
  refused([](EngineRequest& r) { r.prompt = text(101, 1); });
  refused([](EngineRequest& r) { r.prompt[3] = kVocab; });
  refused([](EngineRequest& r) { r.prompt[3] = -1; });
  refused([](EngineRequest& r) { r.stop_tokens = {-1}; });
  refused([](EngineRequest& r) { r.max_tokens = 0; });
  refused([](EngineRequest& r) { r.logprobs = 21; });
  refused([](EngineRequest& r) { r.tenant = ""; });
  refused([](EngineRequest& r) { r.tenant = std::string(129, 'x'); });
  refused([](EngineRequest& r) { r.sampling.top_p = 2; });
  CHECK_THROWS(InvalidArgument, bench.loop.set_limits({.parallel = 9, .batch_size = 8}));
  CHECK_THROWS(InvalidArgument, bench.loop.set_limits({.parallel = 0}));
  CHECK_THROWS(InvalidArgument, bench.loop.set_watermarks({.low = 0.5, .high = 0.1}));
  bench.loop.submit(greedy(text(5, 1), 5));
  bench.loop.submit(greedy(text(5, 2), 5));
  CHECK_THROWS(Busy, bench.loop.submit(greedy(text(5, 3), 5)));
  bench.step();
  bench.loop.submit(greedy(text(5, 3), 5));  // one is running now
  CHECK_THROWS(Busy, bench.loop.submit(greedy(text(5, 4), 5)));
  bench.run();
  CHECK(bench.finished.size() == 3);
  CHECK(bench.loop.snapshot()->requests.at("rejected") == 12);
}

TEST(a_prompt_as_long_as_the_context_gets_one_token) {
  Bench bench({.context = 100});
  bench.loop.submit(greedy(text(100, 1), 50));
  bench.loop.submit(greedy(text(60, 2), 1000000));
  bench.run();
  CHECK(bench.tokens[1].size() == 1 && bench.ends[1].reason == FinishReason::length);
  CHECK(bench.tokens[2].size() == 40 && bench.ends[2].reason == FinishReason::length);
}

TEST(a_full_event_queue_pauses_the_steps_and_loses_nothing) {
  Bench bench({.event_capacity = 6});
  const EngineRequest request = greedy(text(10, 1), 50);
  const RequestId id = bench.loop.submit(request);
  for (int i = 0; i < 30; ++i) bench.loop.step();
  CHECK(bench.loop.snapshot()->steps == 5);  // "started" and five tokens
  CHECK(!bench.loop.step());
  const RequestId second = bench.loop.submit(greedy(text(10, 2), 50));
  bench.loop.cancel(second);
  bench.loop.step();
  CHECK(bench.loop.snapshot()->requests.at("cancelled") == 1);  // works while full
  CHECK(bench.loop.snapshot()->steps == 5);
  bench.collect();
  CHECK(bench.finished == std::vector<RequestId>{second});
  bench.run();
  CHECK(bench.tokens[id] == solo(request));
}

TEST(limits_and_watermarks_change_between_steps) {
  Bench bench({.limits = {.parallel = 4}});
  for (std::uint32_t i = 0; i < 4; ++i) bench.loop.submit(greedy(text(10, i + 1), 20));
  bench.step();
  bench.loop.set_limits({.parallel = 1, .batch_size = 8, .prefill_chunk = 4, .queue_length = 3});
  bench.loop.set_watermarks({.low = 0.2, .high = 0.4});
  bench.step();
  const auto snapshot = bench.loop.snapshot();
  CHECK(snapshot->limits.parallel == 1 && snapshot->limits.queue_length == 3);
  CHECK(snapshot->watermarks.high == 0.4);
  CHECK(bench.decoder.rows.back() == 1);  // the others hold their place
  CHECK(snapshot->generating == 4);
  bench.run();
  CHECK((bench.finished == std::vector<RequestId>{1, 2, 3, 4}));
  CHECK(bench.loop.snapshot()->reclaim_duration.counts.size() == 7);
}

TEST(a_failing_step_fails_its_requests_and_the_loop_goes_on) {
  Bench bench({.limits = {.parallel = 2}});
  bench.decoder.poison = kVocab - 1;  // text() never makes it
  const EngineRequest good = greedy(text(30, 1), 3);
  std::vector<Token> bad = text(30, 2);
  bad[29] = kVocab - 1;
  const RequestId beside = bench.loop.submit(greedy(text(30, 3), 3));
  const RequestId failing = bench.loop.submit(greedy(bad, 3));
  const RequestId waiting = bench.loop.submit(good);
  bench.step();
  CHECK(bench.ends[failing].reason == FinishReason::failed);
  CHECK(bench.ends[beside].reason == FinishReason::failed);
  CHECK(bench.ends[failing].error.find("poisoned") != std::string::npos);
  CHECK(bench.cache.sequences().empty());
  CHECK(bench.cache.stats().cells_idle == 0);  // rolled back: nothing became matchable
  bench.run();
  CHECK(bench.ends[waiting].reason == FinishReason::length);
  CHECK(bench.tokens[waiting] == solo(good));
  CHECK(bench.loop.snapshot()->requests.at("failed") == 2);
  bench.cache.check_integrity();
}

TEST(close_all_ends_every_open_request) {
  Bench bench({.limits = {.parallel = 1}});
  for (std::uint32_t i = 0; i < 3; ++i) bench.loop.submit(greedy(text(10, i + 1), 50));
  bench.step();
  bench.loop.request_stop();
  CHECK_THROWS(Busy, bench.loop.submit(greedy(text(10, 4), 5)));
  bench.loop.close_all();
  bench.collect();
  CHECK(bench.finished.size() == 3);
  for (const auto& [id, end] : bench.ends) CHECK(end.reason == FinishReason::cancelled);
  CHECK(bench.cache.sequences().empty());
  CHECK(bench.loop.snapshot()->sessions.empty());
}
