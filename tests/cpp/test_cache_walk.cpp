// The cache under a long random walk of all its operations, seeded, beside a plain model of
// every sequence.
//   - Output of exact tokens equals, bit by bit, that of a cold run of the same tokens.
//   - Output of edited sequences equals attention in float64 over the model's tokens.
//   - After every operation the cache is intact and the sequence holds what it should.
// PYKV_WALK_OPERATIONS sets the number of operations (make test-long).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "cache_walk.h"
#include "check.h"
#include "pykv/errors.h"

using namespace walk;

namespace {

constexpr std::uint64_t kSmall = 256, kLarge = 1024;
constexpr double kTolerance = 2e-4;

bool is_near(double a, double b) { return std::abs(a - b) <= kTolerance * (1 + std::abs(b)); }

class Walk {
 public:
  Walk(std::uint32_t seed, std::uint64_t cells, Windows windows = {})
      : windows_(windows), random_(seed), machine_(cells, windows), cold_(windows) {}

  void run(int operations) {
    for (int i = 0; i < operations && check::failures() == 0; ++i) {
      operate();
      cache().check_integrity();
      check_states();
      if (i % 64 == 0)
        for (const auto& [seq, model] : models_) check_sequence(seq, model);
    }
    if (forgets() && windows_.window.size > 1) {
      CHECK(cache().stats().resume_points_used > 0 && cache().stats().match_no_resume_point_tokens > 0);
      CHECK(refusals_ > 0);
    }
    cache().erase_all();
    cache().reset_prefixes();
    cache().check_integrity();
    for (const PoolStats& pool : cache().stats().pools) CHECK(pool.cells_free == pool.cells_capacity);
  }

 private:
  bool forgets() const { return windows_.pool != 0; }

  Cache& cache() { return machine_.cache; }
  std::uint32_t dice(std::uint32_t sides) { return random_() % sides; }
  SeqId any() {
    return std::next(models_.begin(),
                     static_cast<std::ptrdiff_t>(dice(static_cast<std::uint32_t>(models_.size()))))
        ->first;
  }

  void operate() {
    if (models_.empty()) return create();
    switch (dice(forgets() ? 30 : 26)) {
      case 0:
        return models_.size() < 8 ? create() : erase();
      case 1:
      case 2:
        return open();
      case 3:
        return models_.size() < 8 ? fork() : erase();
      case 4:
        return erase();
      case 5:
      case 6:
        return remove();
      case 7:
      case 8:
        return copy();
      case 9:
      case 10:
        return shift();
      case 11:
        return divide();
      case 12:
        return dice(20) == 0 ? keep() : clear();
      case 13:
        return static_cast<void>(dice(4) == 0 ? cache().evict(dice(80), EvictReason::demand) : 0);
      case 14:
        return static_cast<void>(dice(10) == 0 ? cache().reset_prefixes()
                                               : static_cast<void>(cache().reclaim(dice(60))));
      case 15:
      case 16:
        return compact();
      case 26:
      case 27:
        return rewind();
      case 28:
        return mark();
      default:
        return append();
    }
  }

  void create() {
    const NamespaceId space{dice(2)};
    models_[cache().create(space)].name_space = space;
  }

  std::vector<Token> some_tokens() {
    std::vector<Token> ids(1 + dice(dice(4) == 0 ? 40 : 4));
    for (Token& id : ids) id = static_cast<Token>(dice(3));
    return ids;
  }

  // Continues something that was computed before, as a session does that comes back.
  void open() {
    if (models_.size() >= 8) return erase();
    const Model& like = models_.at(any());
    std::vector<Token> tokens = like.ids();
    tokens.resize(std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(like.exact)));
    if (dice(2) == 0 && !tokens.empty()) tokens.resize(dice(static_cast<std::uint32_t>(tokens.size())));
    for (const Token id : some_tokens()) tokens.push_back(id);
    const NamespaceId space = dice(8) == 0 ? NamespaceId{1 - like.name_space.value} : like.name_space;
    const Cache::Opened opened = cache().open(space, tokens);
    Model model{space, static_cast<Pos>(opened.reused), false, {}};
    // Its tokens are those of a cold run; whether they are shows when it attends.
    model.tokens = cold_tokens(tokens, opened.reused);
    models_[opened.seq] = model;
    check_sequence(opened.seq, model);
  }

  std::vector<Tok> cold_tokens(const std::vector<Token>& ids, std::uint32_t count) {
    std::vector<Tok> out;
    if (count == 0) return out;
    Machine machine(512, {windows_.layer, windows_.window, 0});
    const std::vector<Token> first(ids.begin(), ids.begin() + count);
    const StepRequest request{machine.cache.create(), count, {}};
    Step step = machine.cache.commit(*machine.cache.plan({&request, 1}));
    for (const Row& row : machine.compute(step, first)) out.push_back(row.token);
    return out;
  }

  void append() {
    std::vector<SeqId> seqs{any()};
    if (dice(3) == 0)
      if (const SeqId other = any(); other != seqs[0]) seqs.push_back(other);
    std::vector<std::vector<Token>> ids;
    std::vector<StepRequest> requests;
    std::uint32_t total = 0;
    for (std::size_t i = 0; i < seqs.size(); ++i) ids.push_back(some_tokens());
    for (std::size_t i = 0; i < seqs.size(); ++i) {
      const bool with_ids = dice(8) != 0;
      const auto count = static_cast<std::uint32_t>(ids[i].size());
      requests.push_back(
          {seqs[i], count, with_ids ? std::span<const Token>(ids[i]) : std::span<const Token>{}});
      total += count;
    }
    const std::optional<Plan> plan = cache().plan(requests);
    bool fits = true;
    for (const PoolStats& pool : cache().stats().pools) fits = fits && total <= pool.cells_free;
    CHECK(plan.has_value() == fits);
    if (plan) return step(*plan, requests, ids);
    cache().make_room(total);
  }

  void step(const Plan& plan, const std::vector<StepRequest>& requests,
            const std::vector<std::vector<Token>>& ids) {
    Step step = cache().commit(plan);
    std::vector<Token> flat;
    for (const auto& part : ids) flat.insert(flat.end(), part.begin(), part.end());
    const std::vector<Row> rows = machine_.compute(step, flat);
    CHECK_THROWS(Busy, cache().remove(requests[0].seq, std::nullopt));
    CHECK_THROWS(Busy, cache().compact(1 << 20));
    if (dice(6) == 0) {
      step.rollback();
      return check_sequence(requests[0].seq, models_.at(requests[0].seq));
    }
    step.finish();
    std::size_t next = 0;
    for (const StepRequest& request : requests) {
      Model& model = models_.at(request.seq);
      const bool was_exact = model.exact == model.end();
      for (std::uint32_t i = 0; i < request.count; ++i, ++next) {
        CHECK(rows[next].token.pos == model.end());
        model.tokens.push_back(rows[next].token);
        if (was_exact) check_exact(model, rows[next]);
      }
      check_attention(model, rows[next - 1]);
      if (was_exact && !request.tokens.empty()) model.exact = model.end();
      check_sequence(request.seq, model);
    }
  }

  // Bits of the row that was appended last.
  void check_exact(const Model& model, const Row& row) {
    CHECK(std::memcmp(&row.out, &cold_.output(model.ids()), sizeof(Output)) == 0);
  }

  void check_attention(const Model& model, const Row& row) {
    // The input of the last layer is what its K was made of.
    Output before{};
    const Tok& token = row.token;
    for (std::uint32_t d = 0; d < kDim; ++d) {
      before[d] = token.k[kLayers - 1][d] - value(token.id, 3 * (kLayers - 1), d);
      before[kDim + d] = token.v[kLayers - 1][d] - value(token.id, 3 * (kLayers - 1) + 1, d);
    }
    const Window window = windows_.layer == kLayers - 1 ? windows_.window : Window{};
    const auto expected = attention(model, model.tokens.size() - 1, before, window);
    bool near = true;
    for (std::uint32_t d = 0; d < kWidth; ++d) near = near && is_near(row.out[d], expected[d]);
    CHECK(near);
  }

  void fork() {
    const SeqId from = any();
    const CacheStats before = cache().stats();
    models_[cache().fork(from)] = models_.at(from);
    CHECK(cache().stats().cells_free == before.cells_free);
  }

  void compact() {
    const CacheStats before = cache().stats();
    const StepRequest request{any(), 1, {}};
    const std::optional<Plan> plan = cache().plan({&request, 1});
    const std::uint64_t cells = dice(3) == 0 ? dice(8) : dice(500);
    const std::uint32_t moved = cache().compact(cells * before.bytes_per_cell + dice(4));
    const CacheStats after = cache().stats();
    CHECK((forgets() || moved <= cells) && after.compacted_cells == before.compacted_cells + moved);
    CHECK(after.cells_free == before.cells_free && after.cells_idle == before.cells_idle);
    if (plan && moved > 0) CHECK_THROWS(StalePlan, cache().commit(*plan));
    for (const auto& [seq, model] : models_) check_sequence(seq, model);
  }

  void erase() {
    const SeqId seq = any();
    cache().erase(seq);
    models_.erase(seq);
    CHECK_THROWS(InvalidArgument, cache().bounds(seq));
  }

  void clear() {
    const SeqId seq = any();
    cache().clear(seq);
    models_.at(seq) = {models_.at(seq).name_space, 0, false, {}};
    check_sequence(seq, models_.at(seq));
  }

  void keep() {
    const SeqId kept[] = {any(), any()};
    cache().keep(kept);
    std::erase_if(models_,
                  [&](const auto& entry) { return entry.first != kept[0] && entry.first != kept[1]; });
  }

  Span any_span(const Model& model) {
    const Pos begin = static_cast<Pos>(dice(static_cast<std::uint32_t>(model.end()) + 1));
    return {begin, std::min(model.end(), begin + static_cast<Pos>(dice(dice(2) == 0 ? 200 : 12)))};
  }

  // Whether the call was made; false: it was refused because window cells are gone.
  template <class Call>
  bool possible(Call call) {
    try {
      call();
    } catch (const Unsupported&) {
      CHECK(forgets());
      ++refusals_;
      return false;
    }
    return true;
  }

  void rewind() {
    const SeqId seq = any();
    Model& model = models_.at(seq);
    const Pos wanted = static_cast<Pos>(dice(static_cast<std::uint32_t>(model.end()) + 1));
    const Pos reached = cache().rewind(seq, wanted);
    CHECK(reached <= wanted);
    std::erase_if(model.tokens, [&](const Tok& token) { return token.pos >= reached; });
    CHECK(model.end() == reached || !model.is_exact());
    model.exact = std::min(model.exact, reached);
    check_sequence(seq, model);
  }

  void mark() {
    const SeqId seq = any();
    const Model& model = models_.at(seq);
    if (!model.is_exact()) {
      CHECK_THROWS(InvalidArgument, cache().mark_resume(seq));
      return;
    }
    cache().mark_resume(seq);
    if (model.end() == 0 || model.tokens.empty()) return;
    // From there another sequence goes on.
    std::vector<Token> tokens = model.ids();
    CHECK(cache().match(model.name_space, tokens) == tokens.size());
  }

  void remove() {
    const SeqId seq = any();
    Model& model = models_.at(seq);
    const Span span = dice(12) == 0 ? Span{0, model.end()} : any_span(model);
    const auto take_off = [&] {
      if (span.end == model.end() && dice(2) == 0)
        cache().discard(seq, span.begin);
      else
        cache().remove(seq, span);
    };
    if (!possible(take_off)) return check_sequence(seq, model);
    if (!model.in(span).empty()) model.exact = std::min(model.exact, span.begin);
    std::erase_if(model.tokens,
                  [&](const Tok& token) { return token.pos >= span.begin && token.pos < span.end; });
    check_sequence(seq, model);
  }

  void copy() {
    const SeqId from = any(), to = any();
    const Model& source = models_.at(from);
    Model& target = models_.at(to);
    const Span span = dice(3) == 0 ? Span{0, source.end()} : any_span(source);
    const std::vector<Tok> copied = source.in(span);
    const bool collides = std::any_of(copied.begin(), copied.end(), [&](const Tok& token) {
      return !target.in({token.pos, token.pos + 1}).empty();
    });
    if (collides) {
      CHECK_THROWS(InvalidArgument, cache().copy(from, span, to));
      return check_sequence(to, target);
    }
    if (!possible([&] { cache().copy(from, span, to); })) return check_sequence(to, target);
    if (copied.empty()) return check_sequence(to, target);
    const bool is_prefix =
        target.tokens.empty() && copied[0].pos == 0 && source.name_space == target.name_space;
    target.exact = is_prefix ? std::min(source.exact, span.end) : std::min(target.exact, copied[0].pos);
    target.is_moved = target.is_moved || source.is_moved;
    target.tokens.insert(target.tokens.end(), copied.begin(), copied.end());
    std::stable_sort(target.tokens.begin(), target.tokens.end(),
                     [](const Tok& a, const Tok& b) { return a.pos < b.pos; });
    check_sequence(to, target);
  }

  void shift() {
    const SeqId seq = any();
    Model& model = models_.at(seq);
    const Span span = any_span(model);
    const std::vector<Tok> moved = model.in(span);
    if (moved.empty()) return cache().shift(seq, span, 5);
    const std::vector<Tok> before = model.in({0, span.begin}), behind = model.in({span.end, kMaxPos});
    const Pos lowest = (before.empty() ? -1 : before.back().pos) + 1 - moved[0].pos;
    const Pos highest = (behind.empty() ? kMaxPos : behind[0].pos) - 1 - moved.back().pos;
    CHECK_THROWS(InvalidArgument, cache().shift(seq, span, lowest - 1));
    CHECK_THROWS(InvalidArgument, cache().shift(seq, span, highest + 1));
    const auto room =
        static_cast<std::uint32_t>(std::min(highest, std::max(2000 - moved.back().pos, 0)) - lowest + 1);
    const Pos delta = dice(2) == 0 ? lowest : lowest + static_cast<Pos>(dice(room));
    const CacheStats stats = cache().stats();
    if (!possible([&] { cache().shift(seq, span, delta); })) return check_sequence(seq, model);
    if (cache().stats().k_bytes_rewritten == stats.k_bytes_rewritten)
      CHECK(cache().stats().cells_free == stats.cells_free);
    if (delta != 0) {
      model.exact = std::min(model.exact, moved[0].pos);
      model.is_moved = true;
    }
    for (Tok& token : model.tokens)
      if (token.pos >= span.begin && token.pos < span.end) token.pos += delta;
    check_sequence(seq, model);
  }

  void divide() {
    const SeqId seq = any();
    Model& model = models_.at(seq);
    const Span span = dice(2) == 0 ? Span{0, any_span(model).end} : any_span(model);
    const Pos divisor = 1 + static_cast<Pos>(dice(4));
    const std::vector<Tok> moved = model.in(span), before = model.in({0, span.begin});
    const bool passes = !moved.empty() && !before.empty() && moved[0].pos / divisor < before.back().pos;
    if (passes && divisor > 1) {
      CHECK_THROWS(InvalidArgument, cache().divide(seq, span, divisor));
      return check_sequence(seq, model);
    }
    try {
      if (!possible([&] { cache().divide(seq, span, divisor); })) return check_sequence(seq, model);
    } catch (const OutOfCells&) {
      CHECK(moved.size() > cache().stats().cells_free);
      return check_sequence(seq, model);
    }
    if (!moved.empty() && divisor > 1) {
      model.exact = std::min(model.exact, moved[0].pos / divisor);
      model.is_moved = true;
    }
    for (Tok& token : model.tokens)
      if (token.pos >= span.begin && token.pos < span.end) token.pos /= divisor;
    check_sequence(seq, model);
  }

  void check_states() {
    const CacheStats s = cache().stats();
    for (const PoolStats& pool : s.pools)
      CHECK(pool.cells_computing + pool.cells_active + pool.cells_resume + pool.cells_idle +
                pool.cells_free ==
            pool.cells_capacity);
    CHECK(s.resume_bytes <= s.resume_bytes_budget);
    CHECK(s.cells_computing + s.cells_active + s.cells_pinned + s.cells_resume + s.cells_idle +
              s.cells_free ==
          s.cells_capacity);
    CHECK(s.cells_computing == 0 && s.sequences == models_.size());
  }

  void check_sequence(SeqId seq, const Model& model) {
    CHECK(cache().bounds(seq) == model.bounds());
    CHECK(cache().exact_upto(seq) == model.exact);
    std::vector<Pos> positions;
    for (const Run& run : cache().runs(seq))
      for (std::uint32_t i = 0; i < run.length; ++i) positions.push_back(run.first + static_cast<Pos>(i));
    CHECK(positions.size() == model.tokens.size());
    if (positions.size() != model.tokens.size()) return;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      const Cache::RowValues rows = cache().read_rows(seq, layer, std::nullopt);
      const bool is_window = forgets() && layer == windows_.layer;
      bool same = is_window ? rows.rows <= positions.size() : rows.rows == positions.size();
      if (is_window) check_window(seq, model);
      const std::size_t gone = positions.size() - rows.rows;  // of a window
      for (std::size_t i = 0; same && i < rows.rows; ++i) {
        const Tok& token = model.tokens[gone + i];
        Vector k = token.k[layer];
        rotate(k.data(), token.pos);
        same = positions[gone + i] == token.pos &&
               std::memcmp(&rows.v[i * kDim], &token.v[layer], sizeof(Vector)) == 0;
        for (std::uint32_t d = 0; d < kDim; ++d)
          same =
              same && (model.is_moved ? is_near(rows.k[i * kDim + d], k[d]) : rows.k[i * kDim + d] == k[d]);
      }
      CHECK(same);
    }
  }

  // What the next token sees is there.
  void check_window(SeqId seq, const Model& model) {
    std::size_t kept = 0;
    for (const Run& run : cache().runs(seq, windows_.pool)) kept += run.length;
    const Pos first = first_visible(model.end(), windows_.window);
    CHECK(kept >= model.in({first, kMaxPos}).size());
  }

  Windows windows_;
  int refusals_ = 0;
  std::mt19937 random_;
  Machine machine_;
  ColdRuns cold_;
  std::map<SeqId, Model> models_;
};

int operations() {
  const char* const given = std::getenv("PYKV_WALK_OPERATIONS");
  return given != nullptr ? std::atoi(given) : 100000;
}

}  // namespace

TEST(a_long_walk_leaves_nothing_behind) {
  constexpr int kWalks = 4;
  for (std::uint32_t seed = 1; seed <= kWalks; ++seed)
    Walk(seed, seed % 2 == 0 ? kSmall : kLarge).run(operations() / kWalks);
}

TEST(a_long_walk_with_a_window_pool_leaves_nothing_behind) {
  constexpr Windows kinds[] = {{1, {WindowKind::standard, 24}, 1},
                               {0, {WindowKind::standard, 24}, 1},
                               {1, {WindowKind::chunked, 32}, 1},
                               {0, {WindowKind::standard, 1}, 1}};
  std::uint32_t seed = 10;
  for (const Windows& windows : kinds)
    for (const std::uint64_t cells : {kSmall, kLarge}) Walk(++seed, cells, windows).run(operations() / 16);
}
