// cache.h from C++: life of steps and plans, announced prompts, space, threads. What its
// sequences contain is tested against a model in tests/property.
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "pykv/cache.h"
#include "pykv/errors.h"

using namespace pykv;

namespace {

constexpr std::uint32_t kDim = 8;

CacheConfig config(std::uint64_t cells) {
  LayerSpec layer;
  layer.kv_heads = 1;
  layer.k_dim = kDim;
  layer.v_dim = kDim;
  CacheConfig out;
  out.layers = {layer, layer};
  out.type_k = DType::f32;
  out.type_v = DType::f32;
  out.cells = cells;
  return out;
}

// A cache with a clock that ticks once per look, so that the order of use is exact.
struct Fixture {
  explicit Fixture(std::uint64_t cells, std::uint64_t pool_bytes = 0) {
    CacheConfig made = config(cells);
    made.pool_bytes = pool_bytes;
    made.clock = [this] { return ticks += 1; };
    cache = std::make_unique<Cache>(std::move(made), backend);
  }

  void write(Step& step) {
    const BufferId buffer = backend.create_buffer(step.rows(), kDim);
    const Rows rows{buffer, 0, step.rows(), kDim};
    backend.upload(rows, std::vector<float>(std::size_t{step.rows()} * kDim, 1.0F));
    for (std::uint32_t layer = 0; layer < 2; ++layer) step.write(layer, rows, rows);
    backend.destroy_buffer(buffer);
  }

  void append(std::vector<StepRequest> requests) {
    std::optional<Plan> plan = cache->plan(requests);
    CHECK(plan.has_value());
    if (!plan) return;
    Step step = cache->commit(*plan);
    write(step);
    step.finish();
  }
  void append(SeqId seq, std::span<const Token> tokens) {
    append({{seq, static_cast<std::uint32_t>(tokens.size()), tokens}});
  }
  void append(SeqId seq, std::uint32_t count) { append({{seq, count, {}}}); }

  Step begin(SeqId seq, std::uint32_t count) {
    const StepRequest request{seq, count, {}};
    return cache->commit(*cache->plan({&request, 1}));
  }

  double ticks = 0;
  Backend backend{BackendConfig{1, "scalar"}};
  std::unique_ptr<Cache> cache;
};

std::vector<Token> text(std::uint32_t length, Token from = 0) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

std::uint64_t sum_of_states(const CacheStats& s) {
  return s.cells_computing + s.cells_active + s.cells_pinned + s.cells_resume + s.cells_idle + s.cells_free;
}

}  // namespace

TEST(a_step_that_outlives_its_cache_says_so) {
  Fixture f(64);
  const SeqId seq = f.cache->create();
  Step step = f.begin(seq, 5);
  f.cache.reset();
  CHECK_THROWS(InvalidArgument, step.finish());
  CHECK_THROWS(InvalidArgument, step.backend());
  CHECK(step.rows() == 5);
  step.rollback();
}

TEST(a_plan_is_valid_until_the_cache_changes) {
  Fixture f(64), other(64);
  const SeqId seq = f.cache->create();
  const StepRequest request{seq, 5, {}};
  const Plan plan = *f.cache->plan({&request, 1});
  CHECK(plan.tokens() == 5 && plan.blocks_to_commit() == 1);
  other.cache->create();
  CHECK_THROWS(StalePlan, other.cache->commit(plan));
  const Plan fresh = *f.cache->plan({&request, 1});
  f.cache->create();
  CHECK_THROWS(StalePlan, f.cache->commit(fresh));
  const Plan again = *f.cache->plan({&request, 1});
  f.cache->commit(again).rollback();
  CHECK_THROWS(StalePlan, f.cache->commit(again));
  CHECK_THROWS(StalePlan, f.cache->commit(Plan()));
}

TEST(what_is_discarded_does_not_become_idle) {
  Fixture f(128);
  const SeqId seq = f.cache->create();
  f.append(seq, text(20));
  f.append(seq, text(8, 20));
  f.cache->discard(seq, 23);
  CHECK(f.cache->bounds(seq) == (Span{0, 23}) && f.cache->exact_upto(seq) == 23);
  CHECK(f.cache->stats().cells_idle == 0 && f.cache->stats().cells_free == 128 - 23);
  CHECK(f.cache->match({}, text(28)) == 23);
  f.cache->discard(seq, 10);  // older tokens than the last step's are kept
  CHECK(f.cache->stats().cells_idle == 13 && f.cache->match({}, text(28)) == 23);
  f.append(seq, text(5, 500));
  f.cache->discard(seq, 0);  // of the last step those, as if they had never been
  CHECK(f.cache->stats().cells_idle == 23 && f.cache->match({}, text(28)) == 23);
  std::vector<Token> continued = text(10);
  continued.push_back(500);
  CHECK(f.cache->match({}, continued) == 10);
  f.cache->check_integrity();
  CHECK_THROWS(InvalidArgument, f.cache->discard(seq, -1));
  CHECK_THROWS(InvalidArgument, f.cache->discard(seq, 1));
  f.cache->discard(seq, 0);
}

TEST(what_others_have_is_not_discarded) {
  Fixture f(128);
  const SeqId seq = f.cache->create(), without_ids = f.cache->create();
  f.append(seq, text(20));
  const SeqId fork = f.cache->fork(seq);
  f.cache->discard(seq, 10);
  CHECK(f.cache->match({}, text(20)) == 20 && f.cache->bounds(fork).end == 20);
  f.cache->erase(fork);
  CHECK(f.cache->stats().cells_idle == 10);
  f.append(seq, text(12, 10));  // ten were there, two are new
  f.cache->discard(seq, 10);
  CHECK(f.cache->stats().cells_idle == 10 && f.cache->match({}, text(22)) == 20);
  f.append(seq, text(12, 10));
  const Cache::Opened other = f.cache->open({}, text(30));  // takes all 22 of them
  f.cache->discard(seq, 10);
  CHECK(other.reused == 22 && f.cache->match({}, text(22)) == 22);
  f.append(without_ids, 7);
  f.cache->discard(without_ids, 2);
  CHECK(f.cache->bounds(without_ids).end == 2);
  f.cache->check_integrity();
}

TEST(one_step_at_a_time_and_its_sequences_are_busy) {
  Fixture f(128);
  const SeqId seq = f.cache->create(), free_one = f.cache->create();
  f.append(seq, 3);
  {
    Step step = f.begin(seq, 2);
    CHECK_THROWS(Busy, f.begin(free_one, 1));
    CHECK_THROWS(Busy, f.cache->erase(seq));
    CHECK_THROWS(Busy, f.cache->clear(seq));
    CHECK_THROWS(Busy, f.cache->fork(seq));
    CHECK_THROWS(Busy, f.cache->remove(seq, Span{2, 3}));
    CHECK_THROWS(Busy, f.cache->erase_all());
    CHECK((f.cache->bounds(seq) == Span{0, 3}));  // readers see the state before the step
    f.cache->erase(free_one);
    f.cache->check_integrity();
  }  // rolls back
  CHECK((f.cache->bounds(seq) == Span{0, 3}));
  CHECK(f.cache->stats().cells_active == 3);
  f.cache->erase(seq);
}

TEST(states_add_up_at_every_instant) {
  Fixture f(128);
  const auto check = [&](std::uint64_t computing, std::uint64_t active, std::uint64_t idle) {
    const CacheStats s = f.cache->stats();
    CHECK(s.cells_computing == computing && s.cells_active == active && s.cells_idle == idle);
    CHECK(sum_of_states(s) == s.cells_capacity && s.cells_capacity == 128);
    f.cache->check_integrity();
  };
  check(0, 0, 0);
  const SeqId seq = f.cache->create();
  const auto prompt = text(20);
  const StepRequest request{seq, 20, prompt};
  {
    Step step = f.cache->commit(*f.cache->plan({&request, 1}));
    check(20, 0, 0);
    f.write(step);
    step.finish();
    check(0, 20, 0);
  }
  f.cache->erase(seq);
  check(0, 0, 20);
  CHECK(f.cache->evict(5, EvictReason::demand) == 5);
  check(0, 0, 15);
  f.cache->reset_prefixes();
  check(0, 0, 0);
  CHECK(f.cache->stats().evicted_cells_demand == 5 && f.cache->stats().evicted_cells_request == 15);
}

TEST(rollback_returns_everything) {
  Fixture f(128);
  const SeqId seq = f.cache->create(), copy = f.cache->fork(seq);
  const auto prompt = text(70);
  f.append(seq, prompt);
  f.append(copy, std::span(prompt).first(10));
  const auto runs = f.cache->runs(seq);
  const CacheStats before = f.cache->stats();
  for (const bool explicitly : {true, false}) {
    Step step = f.begin(seq, 30);
    f.write(step);
    if (explicitly) step.rollback();
  }
  const CacheStats after = f.cache->stats();
  CHECK(f.cache->runs(seq) == runs);
  CHECK(f.cache->exact_upto(seq) == 70);
  CHECK(after.cells_active == before.cells_active && after.cells_free == before.cells_free);
  CHECK(after.tree_nodes == before.tree_nodes && after.tree_tokens == before.tree_tokens);
  f.append(seq, text(30, 500));  // what was rolled back hinders nothing
  CHECK(f.cache->exact_upto(seq) == 100);
  f.cache->check_integrity();
}

TEST(finish_needs_every_layer) {
  Fixture f(64);
  const SeqId seq = f.cache->create();
  Step step = f.begin(seq, 1);
  CHECK_THROWS(InvalidArgument, step.finish());
  f.write(step);
  step.finish();
  CHECK_THROWS(InvalidArgument, step.finish());
  CHECK_THROWS(InvalidArgument, f.write(step));
  step.rollback();  // no effect any more
  CHECK((f.cache->bounds(seq) == Span{0, 1}));
}

TEST(an_open_prompt_is_announced_to_those_who_follow) {
  Fixture f(256);
  const auto prompt = text(100);
  const auto leader = f.cache->open({}, prompt);
  CHECK(leader.reused == 0 && leader.pending == 0);
  f.append(leader.seq, std::span(prompt).first(40));
  auto follower = f.cache->open({}, prompt);
  CHECK(follower.reused == 40 && follower.pending == 60);
  f.cache->check_integrity();
  f.append(leader.seq, std::span(prompt).subspan(40));
  f.cache->erase(follower.seq);
  follower = f.cache->open({}, prompt);
  CHECK(follower.reused == 99 && follower.pending == 0);
  CHECK(f.cache->stats().cells_active == 100);
  f.cache->check_integrity();
}

TEST(an_announcement_ends_with_its_sequence_or_with_other_tokens) {
  Fixture f(256);
  const auto prompt = text(100), other = text(100, 1000);
  for (int way = 0; way < 4; ++way) {
    const auto leader = f.cache->open({}, prompt, 0);
    f.append(leader.seq, std::span(prompt).first(10));
    CHECK(f.cache->open({}, prompt).pending == 90);
    if (way == 0) f.cache->erase(leader.seq);
    if (way == 1) f.cache->clear(leader.seq);
    if (way == 2) f.append(leader.seq, std::span(other).first(5));
    if (way == 3) f.append(leader.seq, 5);
    f.cache->check_integrity();
    f.cache->erase_all();
    CHECK(f.cache->open({}, prompt).pending == 0);
    f.cache->erase_all();
    f.cache->reset_prefixes();
    CHECK(f.cache->stats().tree_nodes == 0);
  }
}

TEST(an_announcement_never_keeps_cells_from_others) {
  Fixture f(128);
  const auto prompt = text(100);
  const auto leader = f.cache->open({}, prompt), follower = f.cache->open({}, prompt);
  f.append(leader.seq, prompt);
  f.cache->erase(leader.seq);
  CHECK(f.cache->stats().cells_idle == 100);
  CHECK(f.cache->evict(100, EvictReason::demand) == 100);
  CHECK(f.cache->exact_upto(follower.seq) == 0);
  f.cache->check_integrity();
  f.append(follower.seq, prompt);
  CHECK(f.cache->match({}, prompt) == 100);
}

TEST(the_same_tokens_computed_twice_are_stored_once) {
  Fixture f(256);
  const auto prompt = text(100);
  const SeqId a = f.cache->create(), b = f.cache->create();
  f.append({{a, 100, prompt}, {b, 100, prompt}});
  CHECK(f.cache->stats().cells_active == 100);
  CHECK(f.cache->shared_cells(a) == 100 && f.cache->shared_cells(b) == 100);
  f.cache->erase(a);
  f.append(b, std::span(prompt).first(7));
  f.cache->check_integrity();
  CHECK(f.cache->stats().cells_active == 107);
}

TEST(eviction_does_not_forget_what_frees_nothing) {
  Fixture f(64);
  const Token text[] = {1, 2};
  const SeqId first = f.cache->create(), second = f.cache->create(NamespaceId{1});
  f.append(first, text);
  f.cache->copy(first, std::nullopt, second);  // not exact in its namespace
  f.cache->erase(first);
  CHECK(f.cache->stats().cells_idle == 0);
  CHECK(f.cache->evict(5, EvictReason::request) == 0);
  CHECK(f.cache->match({}, text) == 2);
  f.cache->erase(second);
  CHECK(f.cache->evict(5, EvictReason::request) == 2);
  CHECK(f.cache->match({}, text) == 0);
}

TEST(eviction_takes_the_oldest_tail_first) {
  Fixture f(256);
  const auto old_text = text(30), new_text = text(30, 500);
  for (const auto* tokens : {&old_text, &new_text}) {
    const SeqId seq = f.cache->create();
    f.append(seq, *tokens);
    f.cache->erase(seq);
  }
  CHECK(f.cache->evict(10, EvictReason::request) == 10);
  CHECK(f.cache->match({}, old_text) == 20 && f.cache->match({}, new_text) == 30);
  f.cache->erase(f.cache->open({}, old_text).seq);  // used now: the other one is older
  CHECK(f.cache->evict(10, EvictReason::request) == 10);
  CHECK(f.cache->match({}, new_text) == 20);
}

TEST(reclaim_follows_the_watermarks_and_gives_memory_back) {
  Fixture f(640);
  const auto tokens = text(620);
  const SeqId seq = f.cache->create();
  f.append(seq, tokens);
  f.cache->erase(seq);
  const std::uint64_t block = f.cache->layout().block_bytes();
  CHECK(f.cache->stats().bytes_committed == 10 * block);
  CHECK(f.cache->reclaim() == 44);  // 20 free of 640: below 5 %, up to 10 %
  CHECK(f.cache->reclaim() == 0);
  CHECK(f.cache->stats().reclaim_ticks == 2 && f.cache->stats().reclaim_runs == 1);
  CHECK(f.cache->stats().evicted_cells_watermark == 44);
  CHECK(f.cache->stats().bytes_committed == 10 * block);  // one block free: within the hysteresis
  f.cache->reset_prefixes();
  f.cache->reclaim();
  CHECK(f.cache->stats().bytes_committed == block);
  f.append(f.cache->create(), tokens);  // committed again when used
  f.cache->check_integrity();
}

TEST(the_byte_budget_limits_the_capacity) {
  const std::uint64_t block = Fixture(1).cache->layout().block_bytes();
  Fixture f(1000, 3 * block + 5);
  CHECK(f.cache->stats().cells_capacity == 192);
  CHECK(f.cache->stats().bytes_budget == 3 * block + 5);
  const SeqId seq = f.cache->create();
  f.append(seq, 192);
  CHECK(f.cache->stats().bytes_committed == 3 * block);
  const StepRequest more{seq, 1, {}};
  CHECK(!f.cache->plan({&more, 1}));
  CHECK(f.cache->stats().alloc_failures == 1);
  CHECK_THROWS(InvalidArgument, Fixture(64, block - 1));
}

TEST(sixteen_sessions_side_by_side_keep_long_runs) {
  Fixture f(16 * 512);
  std::vector<SeqId> sessions;
  for (int i = 0; i < 16; ++i) sessions.push_back(f.cache->create());
  for (int i = 0; i < 512; ++i) {
    std::vector<StepRequest> requests;
    for (const SeqId seq : sessions) requests.push_back({seq, 1, {}});
    f.append(requests);
  }
  for (const SeqId seq : sessions) CHECK(f.cache->runs(seq).size() <= 512 / 64 + 1);
  f.cache->check_integrity();
}

TEST(bad_arguments_change_nothing) {
  Fixture f(64);
  const SeqId seq = f.cache->create();
  f.append(seq, 10);
  const std::uint64_t generation = f.cache->stats().generation;
  CHECK_THROWS(InvalidArgument, f.cache->remove(seq, Span{-1, 10}));
  CHECK_THROWS(InvalidArgument, f.cache->remove(seq, Span{5, 4}));
  CHECK_THROWS(InvalidArgument, f.cache->remove(seq, Span{0, 11}));
  CHECK_THROWS(InvalidArgument, f.cache->remove(seq, Span{0, kMaxPos}));
  CHECK_THROWS(InvalidArgument, f.cache->fork(SeqId{99}));
  CHECK_THROWS(InvalidArgument, f.cache->fork(SeqId{~std::uint64_t{0}}));
  CHECK_THROWS(InvalidArgument, f.cache->plan({}));
  const std::vector<Token> negative{-1};
  CHECK_THROWS(InvalidArgument, f.cache->open({}, negative));
  const StepRequest none{seq, 0, {}}, twice[] = {{seq, 1, {}}, {seq, 1, {}}}, wrong{seq, 2, negative},
                                      beyond{seq, 0xffffffff, {}};
  CHECK_THROWS(InvalidArgument, f.cache->plan({&none, 1}));
  CHECK_THROWS(InvalidArgument, f.cache->plan(twice));
  CHECK_THROWS(InvalidArgument, f.cache->plan({&wrong, 1}));
  CHECK_THROWS(InvalidArgument, f.cache->plan({&beyond, 1}));
  CHECK_THROWS(InvalidArgument, f.cache->set_watermarks({0.5, 0.1}));
  CHECK(f.cache->stats().generation == generation);
  CHECK_THROWS(InvalidArgument, Fixture(0));
  CHECK_THROWS(InvalidArgument, Fixture(~std::uint64_t{0}));
}

TEST(reads_are_safe_beside_steps) {
  Fixture f(512);
  const auto prompt = text(64);
  std::atomic<bool> stop{false};
  std::atomic<bool> added_up{true};
  std::thread reader([&] {
    while (!stop) {
      const CacheStats s = f.cache->stats();
      if (sum_of_states(s) != s.cells_capacity) added_up = false;
      (void)f.cache->match({}, prompt);
      for (const SeqId seq : f.cache->sequences()) (void)seq;
      (void)f.cache->prefix_nodes();
    }
  });
  for (int i = 0; i < 200; ++i) {
    const auto opened = f.cache->open({}, prompt);
    f.append(opened.seq, std::span(prompt).subspan(opened.reused));
    f.cache->erase(opened.seq);
    if (i % 10 == 0) f.cache->reset_prefixes();
  }
  stop = true;
  reader.join();
  CHECK(added_up);
  f.cache->check_integrity();
}
