// What the pool of a window takes beside what full cells would: 16 sessions of 4,096 tokens on the
// layers of Gemma 3 270M, 18 of which 15 have a window of 512, without and with resume points.
#include <cstdio>
#include <vector>

#include "check.h"
#include "windows_fixture.h"

using namespace windows;

namespace {

constexpr std::uint32_t kSessions = 16, kTokens = 4096, kWindow = 512, kStep = 256, kSpacing = 512;
constexpr std::uint64_t kPointCells = kWindow - 1;
constexpr std::uint64_t kLiveCells = kSessions * (kPointCells + 1);  // what is behind, and the new one

// 16 conversations with nothing in common. After each step it checks the bounds of the window's pool.
struct Sessions : Fixture {
  Sessions() : Fixture(kSessions * (kTokens + 512), kWindow, 18) {
    config.step_tokens = kStep;
    config.resume_spacing = kSpacing;
    make();
  }

  static std::vector<Token> own(std::uint32_t session, std::uint32_t begin, std::uint32_t end) {
    const auto first = static_cast<Token>(10000 * session);
    return range(first + static_cast<Token>(begin), first + static_cast<Token>(end));
  }

  void step(std::uint32_t session, std::uint32_t begin, std::uint32_t end) {
    CHECK(append(seqs.at(session), own(session, begin, end)));
    check();
  }

  // From what is there on, in turns.
  void compute_prompts(std::uint32_t end) {
    for (std::uint32_t at = 0; at < end; at += kStep) {
      for (std::uint32_t i = 0; i < kSessions; ++i) {
        const auto begin = static_cast<std::uint32_t>(cache->bounds(seqs[i]).end);
        if (begin < std::min(at + kStep, end)) step(i, begin, std::min(at + kStep, end));
      }
    }
  }

  // A token more for each, until all have so many.
  void generate(std::uint32_t end) {
    for (auto at = static_cast<std::uint32_t>(cache->bounds(seqs[0]).end); at < end; ++at) {
      std::vector<StepRequest> all;
      std::vector<std::vector<Token>> tokens;
      for (std::uint32_t i = 0; i < kSessions; ++i) tokens.push_back(own(i, at, at + 1));
      for (std::uint32_t i = 0; i < kSessions; ++i) all.push_back({seqs[i], 1, tokens[i]});
      CHECK(append(all));
      check();
    }
  }

  void check() const {
    const CacheStats s = cache->stats();
    const PoolStats& window = s.pools.at(1);
    CHECK(window.cells_active <= kSessions * (kWindow - 1 + kStep));
    CHECK(s.resume_bytes <= s.resume_bytes_budget);
    CHECK(window.cells_resume * window.bytes_per_cell <= s.resume_bytes);
    CHECK(window.cells_active + window.cells_resume + window.cells_free == window.cells_capacity);
  }

  // Bytes in use, with heads of 256 elements of f16 as the model has them.
  std::uint64_t bytes() const {
    const PoolStats full = pool(0), window = pool(1);
    return (full.cells_active + full.cells_idle) * cell_bytes(0) +
           (window.cells_active + window.cells_resume) * cell_bytes(1);
  }
  std::uint64_t bytes_of_full_cells() const {
    return (pool(0).cells_active + pool(0).cells_idle) * (cell_bytes(0) + cell_bytes(1));
  }
  static std::uint64_t cell_bytes(std::uint32_t pool) {
    return BlockLayout(gemma(18, kWindow, 256), pool, DType::f16, DType::f16).bytes_per_cell();
  }
  void print_share(const char* when) const {
    std::printf("  KV bytes of those of full cells, %s: %.4f\n", when,
                static_cast<double>(bytes()) / static_cast<double>(bytes_of_full_cells()));
  }

  std::vector<SeqId> seqs;
};

// Conversations that leave points wherever some are due: two turns, of which the second edits the
// end of the first, and an answer that goes on until a token before the next point of the spacing.
struct Conversations : Sessions {
  static constexpr std::uint32_t kParted = 1500, kDraft = 64, kPrompt = 3000;

  Conversations() {
    for (std::uint32_t i = 0; i < kSessions; ++i) {
      const std::vector<Token> draft =
          range(500000 + 100 * static_cast<Token>(i), 500000 + 100 * static_cast<Token>(i) + Token{kDraft});
      request(joined(own(i, 0, kParted), draft));
      check();
    }
    for (std::uint32_t i = 0; i < kSessions; ++i) seqs.push_back(cache->open(ns, own(i, 0, kPrompt)).seq);
    compute_prompts(kPrompt);
    generate(kTokens - 1);
  }
};

}  // namespace

TEST(a_window_pool_is_sized_by_need_not_by_context) {
  Sessions f;
  f.cache->reset_prefixes();
  for (std::uint32_t i = 0; i < kSessions; ++i) f.seqs.push_back(f.cache->create());
  f.compute_prompts(kTokens);
  f.generate(kTokens + 1);
  CHECK(f.pool(1).cells_active == kLiveCells && f.pool(0).cells_active == kSessions * (kTokens + 1));
  CHECK(Sessions::cell_bytes(0) == 3 * 1024 && Sessions::cell_bytes(1) == 15 * 1024);

  // What is shared is there once.
  for (const SeqId seq : f.seqs) f.cache->fork(seq);
  CHECK(f.pool(1).cells_active == kLiveCells);
  f.cache->check_integrity();
}

TEST(resume_points_beside_the_windows_stay_below_the_bar) {
  Conversations f;
  const CacheStats s = f.cache->stats();
  // Each first turn leaves one at 512, 1024, 1536, its prompt's end and its own; each second one where
  // they part, at its prompt's end and from 512 to 3584. The last session begins at its first turn's 1024.
  CHECK(s.resume_points_made == kSessions * (5 + 2 + 7) - 2);
  CHECK(s.match_no_resume_point_tokens == (kSessions - 1) * Conversations::kParted + 1500 - 1024);
  // The budget is for 1,474 cells: two points at 3584, of which the live windows reach the last cell.
  CHECK(s.resume_bytes_budget == s.pools[0].cells_capacity * s.pools[0].bytes_per_cell / 10);
  CHECK(s.resume_points == 2 && s.resume_bytes == 2 * kPointCells * s.pools[1].bytes_per_cell);
  CHECK(s.pools[1].cells_active == kLiveCells && s.pools[1].cells_resume == 2 * (kPointCells - 1));
  f.print_share("points beside the windows");
  CHECK(f.bytes() ==
        (kSessions * (kTokens - 1 + Conversations::kDraft)) * 3072ULL + (8192 + 1020) * 15360ULL);
  CHECK(100 * f.bytes() <= 30 * f.bytes_of_full_cells());
  f.cache->check_integrity();
}

TEST(resume_points_on_top_of_live_cells_take_none) {
  Conversations f;
  f.generate(kTokens);  // all pass a place where a point is due
  const CacheStats s = f.cache->stats();
  CHECK(s.resume_points == 2 && s.resume_bytes == 2 * kPointCells * s.pools[1].bytes_per_cell);
  CHECK(s.pools[1].cells_active == kLiveCells && s.pools[1].cells_resume == 0);
  f.print_share("points on top of them");
  CHECK(f.bytes() == (kSessions * (kTokens + Conversations::kDraft)) * 3072ULL + 8192 * 15360ULL);
  f.cache->erase_all();  // the newest points are those of the ends of turns now, at the same place
  CHECK(f.pool(1).cells_active == 0 && f.pool(1).cells_resume == 2 * kPointCells);
  f.check();
  f.cache->check_integrity();
}

TEST(points_go_before_anything_that_a_live_session_needs) {
  Conversations f;
  const PoolStats full = f.pool(0), window = f.pool(1);
  // So many tokens that only the cells which each next token sees stay beside them.
  const auto count =
      static_cast<std::uint32_t>((window.cells_capacity - kSessions * kPointCells) / kSessions);
  std::vector<StepRequest> all;
  for (const SeqId seq : f.seqs) all.push_back({seq, count, {}});
  CHECK(!f.append(all) && f.cache->stats().resume_points == 2);
  CHECK(f.cache->make_room(count * kSessions) > 0);
  CHECK(f.cache->stats().resume_points == 0 && f.pool(1).cells_resume == 0);
  CHECK(f.pool(0).cells_active == full.cells_active && f.pool(0).cells_idle == full.cells_idle);
  CHECK(f.pool(1).cells_active == kSessions * kPointCells);
  CHECK(f.append(all));
  f.cache->check_integrity();
}
