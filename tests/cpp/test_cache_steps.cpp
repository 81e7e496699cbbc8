// Steps append in place: what readers see meanwhile, what a failure or a rollback leaves,
// and how much work and memory a step takes.
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "allocations.h"
#include "check.h"
#include "pykv/cache.h"
#include "pykv/errors.h"

using namespace pykv;

namespace {

constexpr std::uint32_t kDim = 8;

std::vector<Token> text(std::uint32_t length, Token from = 0) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

struct Fixture {
  explicit Fixture(std::uint64_t cells) {
    LayerSpec layer;
    layer.kv_heads = 1;
    layer.k_dim = layer.v_dim = kDim;
    CacheConfig config;
    config.layers = {layer};
    config.cells = cells;
    config.clock = [] { return 0.0; };
    cache = std::make_unique<Cache>(std::move(config), backend);
    zeros = backend.create_buffer(1024, kDim);
  }

  Step begin(const std::vector<StepRequest>& requests) { return cache->commit(*cache->plan(requests)); }

  void finish(Step& step) {
    const Rows rows{zeros, 0, step.rows(), kDim};
    step.write(0, rows, rows);
    step.finish();
  }

  void append(SeqId seq, std::span<const Token> tokens) {
    Step step = begin({{seq, static_cast<std::uint32_t>(tokens.size()), tokens}});
    finish(step);
  }

  Backend backend{BackendConfig{1, "scalar"}};
  std::unique_ptr<Cache> cache;
  BufferId zeros;
};

// Everything about the sequences and cells of a cache that can be asked for.
struct State {
  explicit State(const Cache& cache) : stats(cache.stats()) {
    for (const SeqId seq : cache.sequences()) {
      runs.push_back(cache.runs(seq));
      exact.push_back(cache.exact_upto(seq));
      shared.push_back(cache.shared_cells(seq));
    }
  }
  bool operator==(const State& other) const {
    const auto cells = [](const CacheStats& s) {
      return std::vector{s.cells_computing, s.cells_active, s.cells_idle,
                         s.cells_free,      s.tree_nodes,   s.tree_tokens};
    };
    return runs == other.runs && exact == other.exact && shared == other.shared &&
           cells(stats) == cells(other.stats);
  }

  std::vector<std::vector<Run>> runs;
  std::vector<Pos> exact;
  std::vector<std::uint32_t> shared;
  CacheStats stats;
};

// Sequences that differ in what an append has to copy, to extend or to make: three share
// their leaves, one has its own, one is empty.
struct Family : Fixture {
  Family() : Fixture(1 << 14) {
    const SeqId first = cache->create(), other = cache->create();
    for (Token i = 0; i < 40; ++i) {
      append(first, text(30, 100 * i));
      append(other, text(30, 5000 + 100 * i));
    }
    const SeqId grown = cache->fork(first);
    append(grown, text(3, 9000));
    for (const SeqId seq : {first, cache->fork(first), grown, other, cache->create()})
      requests.push_back({seq, 70, {}});
  }

  std::vector<StepRequest> requests;
};

}  // namespace

TEST(readers_see_the_state_before_the_step_until_it_is_finished) {
  Family f;
  const State before(*f.cache);
  Step step = f.begin(f.requests);
  const State within(*f.cache);
  CHECK(within.runs == before.runs && within.exact == before.exact && within.shared == before.shared);
  CHECK(within.stats.cells_active == before.stats.cells_active && within.stats.cells_computing == 350);
  const SeqId empty = f.requests.back().seq;
  CHECK((f.cache->bounds(empty) == Span{0, 0}));
  CHECK_THROWS(InvalidArgument, f.cache->read_rows(empty, 0, Span{0, 1}));
  f.cache->check_integrity();
  f.finish(step);
  CHECK((f.cache->bounds(empty) == Span{0, 70}));
  f.cache->check_integrity();
}

TEST(after_a_rollback_the_next_plan_is_the_same) {
  Family f;
  const State before(*f.cache);
  std::vector<CellIndex> cells;
  for (int i = 0; i < 2; ++i) {
    Step step = f.begin(f.requests);
    std::vector<CellIndex> now;
    for (const Segment& segment : step.attention().segments) now.push_back(segment.cell);
    CHECK(i == 0 || now == cells);
    cells = now;
    step.rollback();
    CHECK(State(*f.cache) == before);
    f.cache->check_integrity();
  }
}

TEST(a_step_that_memory_does_not_suffice_for_changes_nothing) {
  std::optional<Family> f;
  std::optional<State> before;
  std::optional<Step> step;
  const int failed = allocations::fail_each(
      [&] {
        step.reset();
        f.emplace();
        before.emplace(*f->cache);
      },
      [&] { step.emplace(f->begin(f->requests)); },
      [&](bool) {
        step.reset();  // rolls back, if there is one
        CHECK(State(*f->cache) == *before);
        f->cache->check_integrity();
      });
  CHECK(failed >= 10);
}

// The tokens stay; without memory they only cannot be found by others.
TEST(finishing_a_step_needs_no_memory) {
  std::optional<Family> f;
  std::optional<Step> step;
  std::optional<State> before;
  const auto old_end = [&](SeqId seq) {
    const auto& runs = before->runs[seq.value - 1];
    return runs.empty() ? 0 : runs.back().end();
  };
  const auto tokens = text(70, 20000);
  const int failed = allocations::fail_each(
      [&] {
        step.reset();
        f.emplace();
        before.emplace(*f->cache);
        for (StepRequest& request : f->requests) request.tokens = tokens;
        step.emplace(f->begin(f->requests));
        const Rows rows{f->zeros, 0, step->rows(), kDim};
        step->write(0, rows, rows);
      },
      [&] { step->finish(); },
      [&](bool thrown) {
        CHECK(!thrown);
        for (const StepRequest& request : f->requests) {
          const Pos end = f->cache->bounds(request.seq).end, exact = f->cache->exact_upto(request.seq);
          CHECK(end == old_end(request.seq) + 70 && (exact == end || exact == end - 70));
        }
        f->cache->check_integrity();
      });
  CHECK(failed >= 3);
}

TEST(the_memory_of_a_step_does_not_depend_on_its_sessions) {
  Fixture f(1 << 14);
  std::vector<StepRequest> sixteen;
  for (int i = 0; i < 16; ++i) sixteen.push_back({f.cache->create(), 1, {}});
  const std::vector<StepRequest> one{sixteen.front()};
  for (int i = 0; i < 2; ++i) {  // what is kept between steps is made
    Step step = f.begin(sixteen);
    f.finish(step);
  }
  std::optional<Step> step;
  const auto take = [&](const std::vector<StepRequest>& requests) {
    const std::uint64_t count = allocations::of([&] { step.emplace(f.begin(requests)); });
    const Rows rows{f.zeros, 0, step->rows(), kDim};
    step->write(0, rows, rows);
    CHECK(allocations::of([&] { step->finish(); }) == 0);
    step.reset();
    return count;
  };
  const std::uint64_t of_one = take(one);
  CHECK(of_one <= 8);
  CHECK(take(sixteen) == of_one);
}
