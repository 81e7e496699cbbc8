// Compaction: where cells go, what it may cost, and that nobody can tell but by runs and memory.
#include <cstring>
#include <numeric>
#include <vector>

#include "cache_walk.h"
#include "check.h"
#include "pykv/errors.h"

using namespace walk;

namespace {

constexpr std::uint64_t kCells = 512;
constexpr std::uint64_t kMuch = std::uint64_t{1} << 30;

std::vector<Token> text(std::uint32_t length, Token from) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

std::uint64_t bytes(const Cache& cache, std::uint64_t cells) { return cells * cache.stats().bytes_per_cell; }

struct World : Machine {
  explicit World(std::uint64_t cells = kCells) : Machine(cells) {}

  std::vector<Row> append(SeqId seq, const std::vector<Token>& ids, bool named = true) {
    const auto count = static_cast<std::uint32_t>(ids.size());
    const StepRequest request{seq, count, named ? std::span(ids) : std::span<const Token>{}};
    Step step = cache.commit(cache.plan({&request, 1}).value());
    std::vector<Row> rows = compute(step, ids);
    step.finish();
    return rows;
  }

  // Sequences of one cell each in all cells that are free.
  std::vector<SeqId> fill_with_ones() {
    std::vector<StepRequest> requests;
    std::vector<SeqId> ones;
    for (std::uint64_t i = cache.stats().cells_free; i > 0; --i) {
      ones.push_back(cache.create());
      requests.push_back({ones.back(), 1, {}});
    }
    Step step = cache.commit(cache.plan(requests).value());
    compute(step, text(static_cast<std::uint32_t>(ones.size()), 0));
    step.finish();
    return ones;
  }

  // Every second cell is free, the others are of `ones`.
  void erase_even(std::vector<SeqId>& ones) {
    std::erase_if(ones, [&](SeqId seq) {
      if (cache.runs(seq).front().cell % 2 != 0) return false;
      cache.erase(seq);
      return true;
    });
  }

  // A sequence of `length` tokens in runs of length 1, beside free cells.
  SeqId scattered(std::uint32_t length, bool named) {
    std::vector<SeqId> ones = fill_with_ones();
    erase_even(ones);
    const SeqId seq = cache.create();
    append(seq, text(length, 1000), named);
    for (const SeqId one : ones) cache.erase(one);
    CHECK(cache.runs(seq).size() == length);
    return seq;
  }

  std::vector<float> values(SeqId seq) {
    std::vector<float> all;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      const Cache::RowValues rows = cache.read_rows(seq, layer, std::nullopt);
      all.insert(all.end(), rows.k.begin(), rows.k.end());
      all.insert(all.end(), rows.v.begin(), rows.v.end());
    }
    return all;
  }
};

// All that compact() has to do, in calls of `cells` cells.
std::uint32_t compact_all(Cache& cache, std::uint64_t cells) {
  std::uint32_t sum = 0;
  while (const std::uint32_t moved = cache.compact(bytes(cache, cells))) {
    CHECK(moved <= cells);
    cache.check_integrity();
    sum += moved;
    if (sum > 100 * kCells) break;
  }
  return sum;
}

}  // namespace

TEST(short_runs_become_long_for_all_who_share_them) {
  World world;
  Cache& cache = world.cache;
  const SeqId seq = world.scattered(128, true);
  const SeqId fork = cache.fork(seq);
  world.append(fork, {7});
  const SeqId other = cache.open({}, text(101, 1000)).seq;
  const std::vector<float> before = world.values(seq), of_fork = world.values(fork);
  CHECK(cache.compact(kMuch) >= 126);
  cache.check_integrity();
  // The last token and the fork's own behind it are side by side, and stay.
  CHECK(cache.runs(seq).size() <= 3 && cache.runs(other).size() <= 2 && cache.runs(fork).size() <= 3);
  CHECK(world.values(seq) == before && world.values(fork) == of_fork);
  CHECK(cache.match({}, text(128, 1000)) == 128 && cache.exact_upto(seq) == 128);
  CHECK(cache.shared_cells(fork) == 128);
  ColdRuns cold;
  const std::vector<Token> longer = text(129, 1000);
  CHECK(std::memcmp(&world.append(seq, {1128}).back().out, &cold.output(longer), sizeof(Output)) == 0);
  CHECK(cache.compact(kMuch) == 0);
}

TEST(runs_without_ids_become_long_too) {
  World world;
  const SeqId seq = world.scattered(100, false);
  const std::vector<float> before = world.values(seq);
  CHECK(world.cache.compact(kMuch) >= 100);
  world.cache.check_integrity();
  CHECK(world.cache.runs(seq).size() <= 2);
  CHECK(world.values(seq) == before);
}

TEST(a_budget_is_kept_and_calls_go_on_where_it_ended) {
  for (const std::uint64_t cells : {1, 5, 17, 64, 200}) {
    World world;
    const SeqId seq = world.scattered(128, true);
    const std::vector<float> before = world.values(seq);
    CHECK(world.cache.compact(bytes(world.cache, 1) - 1) == 0);
    const std::uint32_t moved = compact_all(world.cache, cells);
    CHECK(cells < 16 || moved >= 128);
    CHECK(world.values(seq) == before);
    CHECK(world.cache.stats().compacted_cells == moved);
    if (cells >= 64) CHECK(world.cache.runs(seq).size() <= 2);
  }
}

TEST(nearly_empty_blocks_are_emptied_and_given_back) {
  World world;
  Cache& cache = world.cache;
  cache.set_watermarks({0, 0});
  std::vector<SeqId> seqs;
  std::vector<std::vector<float>> values;
  for (Token i = 0; i < 8; ++i) {
    seqs.push_back(cache.create());
    world.append(seqs.back(), text(64, 100 * i));
  }
  for (const SeqId seq : seqs) {
    cache.remove(seq, Span{12, 64});
    values.push_back(world.values(seq));
  }
  cache.reset_prefixes();
  CHECK(cache.stats().bytes_committed == bytes(cache, 512));
  const CacheStats before = cache.stats();
  CHECK(before.cells_active == 8 * 12);
  cache.reclaim();
  cache.check_integrity();
  const CacheStats after = cache.stats();
  CHECK(after.compactions > 0 && after.cells_active == before.cells_active);
  CHECK(after.bytes_committed <= bytes(cache, 128 + 64));  // two in use, and what stays for the next
  for (std::size_t i = 0; i < seqs.size(); ++i) CHECK(world.values(seqs[i]) == values[i]);
}

TEST(reclaim_compacts_as_far_as_it_is_allowed_to) {
  for (const std::uint64_t allowed : {0, 12}) {
    Backend backend{BackendConfig{1, "auto"}};
    CacheConfig settings = config(kCells);
    settings.watermarks = {0, 0};
    World world;
    settings.compact_bytes = bytes(world.cache, allowed);
    Cache cache(settings, backend);
    std::vector<StepRequest> requests;
    for (int i = 0; i < 8; ++i) requests.push_back({cache.create(), 64, {}});
    const BufferId zeros = backend.create_buffer(512, kDim);
    {
      Step step = cache.commit(cache.plan(requests).value());
      for (std::uint32_t layer = 0; layer < kLayers; ++layer)
        step.write(layer, {zeros, 0, 512, kDim}, {zeros, 0, 512, kDim});
      step.finish();
    }
    for (const StepRequest& request : requests) cache.remove(request.seq, Span{12, 64});
    cache.reclaim();
    CHECK(cache.stats().compacted_cells == allowed);
    cache.check_integrity();
  }
}

TEST(compaction_waits_for_the_open_step_and_makes_plans_stale) {
  World world;
  Cache& cache = world.cache;
  const SeqId seq = world.scattered(64, true);
  const StepRequest request{seq, 1, {}};
  const Plan plan = cache.plan({&request, 1}).value();
  {
    const Step step = cache.commit(plan);
    CHECK_THROWS(Busy, cache.compact(kMuch));
    cache.reclaim();
    CHECK(cache.stats().compactions == 0);
  }
  const Plan again = cache.plan({&request, 1}).value();
  CHECK(cache.compact(kMuch) > 0);
  CHECK_THROWS(StalePlan, cache.commit(again));
}

// Its block is kept for a growing sequence: filling or emptying it would break the run.
TEST(blocks_with_a_lease_stay_as_they_are) {
  World world;
  Cache& cache = world.cache;
  const SeqId a = cache.create(), b = cache.create();
  world.append(a, text(10, 0));
  world.append(b, text(10, 100));
  CHECK(cache.compact(kMuch) == 0);
  world.append(a, text(54, 10));
  CHECK(cache.runs(a).size() == 1);
}
