// Window pools and resume points from C++: what is kept, from where sequences continue, what is
// refused. That attention reads the right cells is tested by test_cache_walk.cpp.
#include <string>
#include <vector>

#include "check.h"
#include "pykv/errors.h"
#include "windows_fixture.h"

using namespace windows;

namespace {

std::string message_of(auto call) {
  try {
    call();
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(a_window_pool_keeps_what_the_next_token_sees) {
  Fixture f(1024);
  Cache& cache = f.make();
  const SeqId seq = cache.create();
  CHECK(f.append(seq, range(0, 100)));
  CHECK(f.pool(0).cells_active == 100 && f.pool(1).cells_active == 100);  // all of them are the last step's
  CHECK(f.append(seq, range(100, 101)));
  CHECK(f.pool(0).cells_active == 101 && f.pool(1).cells_active == 16);
  CHECK(cache.runs(seq, 1).front().first == 85 && cache.bounds(seq) == (Span{0, 101}));
  CHECK(cache.read_rows(seq, 0, std::nullopt).rows == 16 &&
        cache.read_rows(seq, 5, std::nullopt).rows == 101);
  cache.check_integrity();
}

TEST(a_step_takes_cells_of_all_pools_or_of_none) {
  Fixture f(1024);
  f.config.window_cells = 64;
  f.config.resume_bytes = 0;
  Cache& cache = f.make();
  const SeqId seq = cache.create();
  CHECK(!f.append(seq, range(0, 65)));  // pool 0 has room
  CHECK(cache.stats().alloc_failures == 1 && f.pool(0).cells_free == 1024 && f.pool(1).cells_free == 64);
  for (Token at = 0; at < 400; at += 40) CHECK(f.append(seq, range(at, at + 40)));
  CHECK(cache.bounds(seq).end == 400);
  {
    const StepRequest request{seq, 20, {}};
    Step step = cache.commit(*cache.plan({&request, 1}));
    CHECK(f.pool(0).cells_computing == 20 && f.pool(1).cells_computing == 20);
  }  // rolled back
  CHECK(f.pool(0).cells_active == 400 && f.pool(1).cells_active == 15);
  cache.check_integrity();
}

TEST(a_wrong_guess_is_removed_exactly) {
  Fixture f(1024);
  Cache& cache = f.make();
  const SeqId seq = cache.create();
  CHECK(f.append(seq, range(0, 100)) && f.append(seq, range(100, 108)));
  cache.remove(seq, Span{101, 108});
  CHECK(cache.bounds(seq).end == 101 && cache.exact_upto(seq) == 101);
  CHECK(f.append(seq, range(200, 208)));
  cache.check_integrity();
}

TEST(the_same_prompt_twice_reuses_all_but_its_last_token) {  // C17
  Fixture f(1024);
  f.make();
  CHECK(f.request(range(0, 300)) == 0);
  CHECK(f.request(range(0, 300)) == 299);
  CHECK(f.request(range(0, 310)) == 300);  // where the first one ended
  CHECK(f.cache->stats().match_no_resume_point_tokens == 0);
}

TEST(removing_all_sequences_works) {  // C19
  Fixture f(1024);
  Cache& cache = f.make();
  for (Token i = 0; i < 4; ++i) CHECK(f.append(cache.create(), range(100 * i, 100 * i + 90)));
  const SeqId kept = cache.sequences().front();
  cache.remove(kept, std::nullopt);
  CHECK(cache.bounds(kept) == Span{} && f.append(kept, range(0, 50)));
  cache.clear(kept);
  cache.erase_all();
  cache.check_integrity();
  CHECK(f.pool(1).cells_active == 0 && f.pool(1).cells_resume > 0);
  cache.reset_prefixes();
  cache.check_integrity();
  for (const std::size_t pool : {0U, 1U}) CHECK(f.pool(pool).cells_free == f.pool(pool).cells_capacity);
}

TEST(a_rewind_goes_to_the_position_or_to_the_last_point_before_it) {  // C16
  Fixture f(1024);
  f.config.resume_bytes = 1 << 20;
  Cache& cache = f.make();
  const SeqId seq = cache.create();
  for (Token at = 0; at < 300; at += 50) CHECK(f.append(seq, range(at, at + 50)));
  CHECK(cache.rewind(seq, 299) == 299);  // the last step's tokens are there
  CHECK(cache.rewind(seq, 250) == 250);
  CHECK(cache.rewind(seq, 200) == 192 && cache.bounds(seq).end == 192 && cache.exact_upto(seq) == 192);
  CHECK(f.append(seq, range(192, 230)));
  CHECK(cache.rewind(seq, 63) == 0 && f.append(seq, range(0, 20)));
  CHECK_THROWS(InvalidArgument, cache.rewind(seq, 21));
  CHECK_THROWS(InvalidArgument, cache.rewind(seq, -1));
  cache.check_integrity();
}

TEST(where_conversations_part_a_point_is_made_for_the_next_one) {
  Fixture f(2048);
  f.config.resume_spacing = 0;
  f.config.resume_bytes = 1 << 20;
  Cache& cache = f.make();
  const std::vector<Token> system = range(0, 200);
  CHECK(f.request(joined(system, range(1000, 1100))) == 0);
  const Cache::Opened second = cache.open(ns, joined(system, range(2000, 2100)));
  CHECK(second.reused == 0 && second.no_resume_point == 200);
  CHECK(cache.match(ns, joined(system, range(2000, 2100))) == 0);
  CHECK(cache.stored(ns, joined(system, range(2000, 2100))) == 200);
  CHECK(f.append(second.seq, joined(system, range(2000, 2100))));
  CHECK(f.pool(0).cells_active == 300 && f.pool(0).cells_idle == 100);  // tokens are stored once
  CHECK(cache.stats().match_no_resume_point_tokens == 200);
  cache.erase(second.seq);
  CHECK(f.request(joined(system, range(3000, 3100))) == 200);
}

TEST(a_live_sequence_is_continued_without_a_point) {
  Fixture f(1024);
  f.config.resume_bytes = 0;
  Cache& cache = f.make();
  const std::vector<Token> prompt = range(0, 300);
  const Cache::Opened leader = cache.open(ns, prompt);
  CHECK(f.append(leader.seq, range(0, 100)));
  const Cache::Opened follower = cache.open(ns, prompt);
  CHECK(follower.reused == 100 && follower.pending == 200);
  CHECK(f.append(leader.seq, range(100, 200)));
  CHECK(cache.match(ns, prompt) == 200);
  const std::uint64_t active = f.pool(1).cells_active;
  const Cache::Opened third = cache.open(ns, prompt);
  CHECK(third.reused == 200 && f.pool(1).cells_active == active);  // shared
  const SeqId fork = cache.fork(third.seq);
  CHECK(f.append({{third.seq, 1, {}}, {fork, 1, {}}}));
  cache.check_integrity();
  CHECK(cache.stats().resume_points == 0);
}

TEST(a_prompt_that_is_given_up_leaves_no_point_at_its_end) {
  Fixture f(1024);
  f.config.resume_bytes = 1 << 20;
  Cache& cache = f.make();
  const Cache::Opened opened = cache.open(ns, range(0, 60));
  CHECK(f.append(opened.seq, range(0, 30)));
  cache.erase(opened.seq);
  CHECK(cache.stats().resume_points == 0 && cache.match(ns, range(0, 60)) == 0);
  CHECK(f.request(range(0, 60)) == 0 && cache.stats().resume_points == 3);  // also where it was left
}

TEST(the_budget_of_points_is_kept_and_points_go_first) {
  Fixture f(1024);
  f.config.max_sequences = 2;
  f.config.step_tokens = 64;
  Cache& cache = f.make();
  for (Token i = 0; i < 20; ++i) {
    f.request(range(100 * i, 100 * i + 24));
    const CacheStats s = cache.stats();
    CHECK(s.resume_bytes <= s.resume_bytes_budget);
    CHECK(f.pool(1).cells_resume * f.pool(1).bytes_per_cell <= s.resume_bytes_budget);
  }
  CHECK(cache.stats().resume_points_dropped > 0 && f.pool(1).cells_resume > 0);
  const std::uint64_t idle = f.pool(0).cells_idle;
  const auto wanted = static_cast<std::uint32_t>(f.pool(1).cells_free + 10);
  CHECK(cache.make_room(wanted) >= 10 && f.pool(1).cells_free >= wanted);
  CHECK(f.pool(0).cells_idle == idle);
  cache.check_integrity();
}

TEST(what_window_cells_are_gone_for_is_refused_and_says_what_is_possible) {
  Fixture f(1024);
  f.config.resume_bytes = 1 << 20;
  Cache& cache = f.make();
  const SeqId seq = cache.create(), other = cache.create();
  CHECK(f.append(seq, range(0, 200)) && f.append(seq, range(200, 201)));
  const std::string removed = message_of([&] { cache.remove(seq, Span{150, 201}); });
  CHECK(removed.find("[Cache.remove]") == 0 &&
        removed.find("rewind() goes back to position 128") < removed.size());
  CHECK(message_of([&] { cache.copy(seq, Span{0, 150}, other); }).find("position 128") < 200);
  CHECK_THROWS(Unsupported, cache.divide(seq, Span{0, 201}, 2));
  CHECK(cache.bounds(seq) == (Span{0, 201}));
  cache.copy(seq, Span{0, 128}, other);  // a point is there
  CHECK(cache.exact_upto(other) == 128 && f.append(other, range(500, 510)));
  cache.remove(seq, Span{20, 100});  // the window is not there
  cache.shift(seq, Span{100, 201}, -80);
  CHECK(cache.bounds(seq).end == 121 && f.append({{seq, 5, {}}}));
  cache.check_integrity();
}

TEST(the_bytes_of_all_pools_are_one_budget) {
  Fixture f(1 << 16, 64);
  const std::size_t block = BlockLayout(f.config.layers, 0, DType::f32, DType::f32).block_bytes() +
                            BlockLayout(f.config.layers, 1, DType::f32, DType::f32).block_bytes();
  f.config.pool_bytes = 20 * block;
  Cache& cache = f.make();
  CHECK(cache.stats().bytes_reserved <= f.config.pool_bytes);
  CHECK(f.pool(0).cells_capacity >= 8 * 64 && f.pool(1).cells_capacity >= 8 * 64);
  const SeqId seq = cache.create();
  while (f.append({{seq, 32, {}}}) || cache.make_room(32) > 0) cache.check_integrity();
  CHECK(f.pool(0).cells_free < 32);
  f.config.pool_bytes = block - 1;
  CHECK_THROWS(InvalidArgument, f.make());
}
