#include <numeric>

#include "check.h"
#include "engine/scheduler.h"

using namespace pykv;
using namespace pykv::engine;

namespace {

EngineLimits limits(std::uint32_t parallel, std::uint32_t batch_size, std::uint32_t prefill_chunk) {
  return {.parallel = parallel, .batch_size = batch_size, .prefill_chunk = prefill_chunk, .queue_length = 8};
}

// `length` tokens that start with `common` ones that all prompts share.
std::vector<Token> prompt(std::uint32_t length, std::uint32_t common, Token own) {
  std::vector<Token> tokens(length, own);
  for (std::uint32_t i = 0; i < common && i < length; ++i) tokens[i] = static_cast<Token>(i % 7);
  return tokens;
}

Work fresh(const std::vector<Token>& tokens, std::uint32_t stored = 0) {
  return {.name_space = {}, .tokens = tokens, .stored = stored, .generating = false, .follows = true};
}

Work generates(const std::vector<Token>& tokens) {
  const auto stored = static_cast<std::uint32_t>(tokens.size()) - 1;
  return {.name_space = {}, .tokens = tokens, .stored = stored, .generating = true, .follows = true};
}

// Tokens per work, 0 for those without a share.
std::vector<std::uint32_t> shares(std::span<const Work> works, const EngineLimits& with) {
  std::vector<std::uint32_t> out(works.size(), 0);
  for (const Share& share : schedule(works, with)) out[share.index] = share.tokens;
  return out;
}

using Counts = std::vector<std::uint32_t>;

}  // namespace

TEST(nothing_to_do_gives_no_shares) { CHECK(schedule({}, limits(4, 64, 16)).empty()); }

TEST(each_generating_session_gets_its_token_first) {
  const auto a = prompt(10, 0, 100), b = prompt(500, 0, 101), c = prompt(20, 0, 102);
  const std::vector<Work> works = {fresh(b), generates(a), generates(c)};
  CHECK((shares(works, limits(4, 64, 16)) == Counts{16, 1, 1}));
}

TEST(a_prompt_alone_takes_the_whole_budget) {
  const auto a = prompt(500, 0, 100);
  const std::vector<Work> works = {fresh(a)};
  CHECK((shares(works, limits(4, 256, 16)) == Counts{256}));
  const std::vector<Work> rest = {fresh(a, 490)};
  CHECK((shares(rest, limits(4, 256, 16)) == Counts{10}));
}

TEST(prompts_share_the_chunk_in_order) {
  const auto g = prompt(9, 0, 1), a = prompt(10, 0, 100), b = prompt(50, 0, 101), c = prompt(50, 0, 102);
  const std::vector<Work> works = {generates(g), fresh(a), fresh(b), fresh(c)};
  CHECK((shares(works, limits(8, 256, 32)) == Counts{1, 10, 22, 0}));
}

TEST(a_step_never_exceeds_batch_size) {
  const auto g = prompt(9, 0, 1), a = prompt(100, 0, 100);
  std::vector<Work> works(7, generates(g));
  works.push_back(fresh(a));
  const Counts counts = shares(works, limits(8, 8, 64));
  CHECK(std::accumulate(counts.begin(), counts.end(), 0U) == 8);
  CHECK(counts.back() == 1);
}

TEST(only_the_first_parallel_works_take_part) {
  const auto g = prompt(9, 0, 1);
  const std::vector<Work> works(5, generates(g));
  CHECK((shares(works, limits(3, 64, 16)) == Counts{1, 1, 1, 0, 0}));
}

TEST(identical_prompts_are_computed_once) {
  for (const std::uint32_t length : {2U, 8U, 300U}) {
    const auto a = prompt(length, length, 0);
    const std::vector<Work> works = {fresh(a), fresh(a), fresh(a)};
    CHECK((shares(works, limits(8, 256, 64)) == Counts{std::min(length, 256U), 0, 0}));
  }
}

TEST(a_follower_waits_only_for_what_is_worth_it) {
  const auto a = prompt(100, 15, 100), b = prompt(100, 15, 101);
  const std::vector<Work> little = {fresh(a), fresh(b)};
  CHECK((shares(little, limits(8, 256, 64)) == Counts{100, 100}));
  const auto c = prompt(100, 16, 100), d = prompt(100, 16, 101);
  const std::vector<Work> enough = {fresh(c), fresh(d)};
  CHECK((shares(enough, limits(8, 256, 64)) == Counts{100, 0}));
}

TEST(a_follower_does_not_wait_for_other_texts_namespaces_or_against_its_will) {
  const auto a = prompt(60, 60, 0);
  std::vector<Work> works = {fresh(a), fresh(a)};
  works[1].name_space = NamespaceId{1};
  CHECK((shares(works, limits(8, 256, 64)) == Counts{60, 60}));
  works[1] = fresh(a);
  works[1].follows = false;
  CHECK((shares(works, limits(8, 256, 64)) == Counts{60, 60}));
  const auto b = prompt(60, 0, 5);
  works[1] = fresh(b);
  CHECK((shares(works, limits(8, 256, 64)) == Counts{60, 60}));
}

TEST(who_stands_further_does_not_wait_for_who_comes_behind) {
  const auto a = prompt(100, 100, 0);
  const std::vector<Work> works = {fresh(a, 10), fresh(a, 60)};
  CHECK((shares(works, limits(8, 40, 40)) == Counts{40, 0}));  // budget used up, not waiting
  CHECK((shares(works, limits(8, 60, 40)) == Counts{60, 0}));
  const std::vector<Work> ahead = {fresh(a, 60), fresh(a, 10)};
  CHECK((shares(ahead, limits(8, 100, 40)) == Counts{40, 60}));
}
