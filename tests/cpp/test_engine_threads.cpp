// The step loop on its own thread, with clients and readers on others. Run it with
// ThreadSanitizer: PYKV_SANITIZE=thread.
#include <atomic>
#include <thread>

#include "check.h"
#include "engine_fixture.h"

using namespace fixture;

namespace {

// Whether no counter of `later` is below that of `earlier`.
bool only_grew(const EngineSnapshot& earlier, const EngineSnapshot& later) {
  if (later.number < earlier.number || later.steps < earlier.steps ||
      later.generated_tokens < earlier.generated_tokens || later.prompt_tokens < earlier.prompt_tokens)
    return false;
  for (const auto& [name, count] : earlier.requests)
    if (later.requests.at(name) < count) return false;
  return true;
}

}  // namespace

TEST(clients_readers_and_the_loop_do_not_disturb_each_other) {
  Bench bench(
      {.cells = 512, .limits = {.parallel = 4, .batch_size = 32, .prefill_chunk = 8}, .event_capacity = 64});
  constexpr std::size_t kClients = 2;
  constexpr std::size_t kEach = 15;
  std::thread loop([&] { bench.loop.run(); });
  std::atomic<bool> stop{false};
  std::atomic<int> faults{0};

  std::vector<std::thread> others;
  for (std::uint32_t c = 0; c < kClients; ++c)
    others.emplace_back([&, c] {
      for (std::uint32_t i = 0; i < kEach; ++i) {
        const RequestId id = bench.loop.submit(drawn(text(30, (c + i) % 4), 12, i));
        if (i % 3 == 2) bench.loop.cancel(id);
      }
    });
  for (int r = 0; r < 2; ++r)
    others.emplace_back([&] {
      auto last = bench.loop.snapshot();
      while (!stop) {
        const auto now = bench.loop.snapshot();
        const CacheStats& c = now->cache;
        if (!only_grew(*last, *now)) ++faults;
        if (c.cells_active + c.cells_idle + c.cells_free + c.cells_computing != c.cells_capacity) ++faults;
        last = now;
        std::this_thread::yield();
      }
    });
  others.emplace_back([&] {
    for (std::uint32_t i = 0; i < 50; ++i) {
      bench.loop.set_limits({.parallel = 1 + i % 4, .batch_size = 32, .prefill_chunk = 8});
      bench.loop.set_watermarks({.low = 0.01, .high = 0.02 + 0.001 * i});
      std::this_thread::yield();
    }
  });

  while (bench.finished.size() < kClients * kEach) {
    bench.collect();
    std::this_thread::yield();
  }
  stop = true;
  bench.loop.request_stop();
  loop.join();
  for (auto& other : others) other.join();
  CHECK(faults == 0);
  for (const auto& [id, end] : bench.ends) {
    CHECK(end.reason == FinishReason::length || end.reason == FinishReason::cancelled);
    CHECK(end.generated_tokens == bench.tokens[id].size());
  }
  const auto snapshot = bench.loop.snapshot();
  CHECK(snapshot->requests.at("length") + snapshot->requests.at("cancelled") == kClients * kEach);
  bench.cache.check_integrity();
}

TEST(two_readers_of_an_idle_engine_see_the_same) {  // C28
  Bench bench({});
  bench.loop.submit(greedy(text(20, 1), 5));
  bench.run();
  const auto one = bench.loop.snapshot(), two = bench.loop.snapshot();
  CHECK(one == two);
  CHECK(!bench.step());
  CHECK(bench.loop.snapshot() == one);  // reading and idling change nothing
}
