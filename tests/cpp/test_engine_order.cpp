// Whose turn it is, and how long it may take. Time is the bench's clock.
#include "check.h"
#include "engine_fixture.h"

using namespace fixture;

namespace {

EngineRequest job(std::uint32_t seed, int priority, std::uint32_t tokens) {
  EngineRequest request = drawn(text(8, seed), tokens, seed);
  request.priority = priority;
  return request;
}

EngineRequest hurried(double timeout, std::uint32_t tokens) {
  EngineRequest request = greedy(text(20, 1), tokens);
  request.timeout = timeout;
  return request;
}

// Steps until a batch job ended while more important ones keep coming; at most so many.
int steps_beside_important_ones(double ageing_seconds, int most) {
  Bench bench({.limits = {.parallel = 1, .ageing_seconds = ageing_seconds}});
  const RequestId batch = bench.loop.submit(job(1, 0, 10));
  int steps = 0;
  for (std::uint32_t seed = 2; steps < most && !bench.ends.contains(batch); ++steps) {
    if (bench.loop.snapshot()->waiting < 3) bench.loop.submit(job(++seed, 1, 4));
    bench.ticks += 100;  // 0.1 s
    bench.step();
  }
  if (bench.ends.contains(batch)) CHECK(bench.tokens[batch] == solo(job(1, 0, 10)));
  return steps;
}

}  // namespace

TEST(an_interactive_request_goes_before_a_hundred_queued_batch_jobs) {  // C31
  Bench bench({.limits = {.parallel = 4}});
  for (std::uint32_t seed = 0; seed < 100; ++seed) bench.loop.submit(job(seed, 0, 20));
  for (int i = 0; i < 3; ++i) bench.step();
  const RequestId interactive = bench.loop.submit(job(200, 5, 6));
  bench.step();
  CHECK(bench.tokens[interactive].size() == 1);  // it did not wait for one of the four to end
  bench.run();
  CHECK(bench.finished.front() == interactive);
  CHECK(bench.finished.size() == 101);
  CHECK(bench.loop.snapshot()->preempted == 1);
  CHECK(bench.tokens[interactive] == solo(job(200, 5, 6)));
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    CHECK(bench.ends[seed + 1].reason == FinishReason::length);
    CHECK(bench.tokens[seed + 1] == solo(job(seed, 0, 20)));
  }
  // The one that gave way went on before all that had not begun.
  CHECK(std::find(bench.finished.begin(), bench.finished.end(), 4) < bench.finished.begin() + 10);
}

TEST(nobody_starves) {  // C31
  CHECK(steps_beside_important_ones(1.0, 500) < 60);
  CHECK(steps_beside_important_ones(0.0, 500) == 500);  // without ageing it would
}

TEST(equal_priorities_do_not_take_each_others_places) {
  Bench bench({.limits = {.parallel = 2}});
  for (std::uint32_t seed = 0; seed < 6; ++seed) bench.loop.submit(job(seed, 3, 10));
  bench.run();
  CHECK(bench.loop.snapshot()->preempted == 0);
  CHECK(bench.finished == (std::vector<RequestId>{1, 2, 3, 4, 5, 6}));
}

TEST(an_important_request_that_does_not_fit_takes_the_room_of_another) {
  Bench bench({.cells = 256});
  const RequestId large = bench.loop.submit(greedy(text(180, 1), 40));
  bench.run_until(large, 5);
  EngineRequest request = greedy(text(120, 2), 5);
  request.priority = 1;
  const RequestId important = bench.loop.submit(request);
  bench.run();
  CHECK(bench.finished == (std::vector<RequestId>{important, large}));
  CHECK(bench.tokens[large] == solo(greedy(text(180, 1), 40)));
  bench.cache.check_integrity();
}

TEST(a_change_of_ageing_reorders_the_queue) {
  Bench bench({.limits = {.parallel = 1, .ageing_seconds = 0.5}});
  bench.loop.submit(job(0, 9, 30));
  bench.step();
  const RequestId old = bench.loop.submit(job(1, 0, 2));
  bench.ticks += 2000;
  const RequestId urgent = bench.loop.submit(job(2, 1, 2));
  bench.step();
  bench.loop.set_limits({.parallel = 1, .ageing_seconds = 0});
  bench.run();
  CHECK(bench.finished == (std::vector<RequestId>{1, urgent, old}));
}

TEST(a_request_that_is_not_done_in_time_ends_and_gives_its_cells_back) {
  Bench bench({});
  const RequestId id = bench.loop.submit(hurried(5, 1000));
  const RequestId other = bench.loop.submit(greedy(text(20, 2), 400));
  bench.run_until(id, 7);
  bench.ticks += 6000;
  bench.step();
  CHECK(bench.ends[id].reason == FinishReason::timeout);
  CHECK(bench.ends[id].generated_tokens == 7);
  CHECK(bench.ends[id].error.find("had 5 s") != std::string::npos);
  CHECK(bench.ends[id].error.find("7 of 1000 tokens") != std::string::npos);
  CHECK(bench.cache.sequences().size() == 1);
  CHECK(bench.loop.snapshot()->requests.at("timeout") == 1);
  bench.run();
  CHECK(bench.tokens[other] == solo(greedy(text(20, 2), 400)));
  bench.cache.check_integrity();
}

TEST(time_runs_while_a_request_waits) {
  Bench bench({.limits = {.parallel = 1}});
  const RequestId running = bench.loop.submit(greedy(text(20, 1), 100));
  EngineRequest request = hurried(1, 5);
  request.choices = 3;
  const RequestId waiting = bench.loop.submit(request);
  bench.step();
  bench.ticks += 1001;
  bench.step();
  for (RequestId id = waiting; id < waiting + 3; ++id) {
    CHECK(bench.ends[id].reason == FinishReason::timeout);
    CHECK(bench.ends[id].generated_tokens == 0);
  }
  bench.run();
  CHECK(bench.ends[running].reason == FinishReason::length);
}

TEST(time_runs_while_nobody_reads_events) {
  Bench bench({.event_capacity = 1});
  const RequestId id = bench.loop.submit(hurried(1, 1000));
  bench.loop.step();
  bench.ticks += 2000;
  bench.loop.step();
  bench.collect();
  CHECK(bench.ends[id].reason == FinishReason::timeout);
}

TEST(a_request_in_time_is_not_touched) {
  Bench bench({});
  const RequestId id = bench.loop.submit(hurried(1e4, 20));
  bench.run();
  CHECK(bench.ends[id].reason == FinishReason::length);
}

TEST(timeouts_and_ageing_out_of_range) {
  Bench bench({});
  for (const double bad : {0.0, -1.0, 86401.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()})
    CHECK_THROWS(InvalidArgument, bench.loop.submit(hurried(bad, 5)));
  for (const double bad : {-1.0, 86401.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS(InvalidArgument, bench.loop.set_limits({.ageing_seconds = bad}));
}
