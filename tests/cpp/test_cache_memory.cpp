// Cache when memory runs out, in every operation and at every request for memory in it: the
// cache is whole, nothing has changed, and the operation succeeds as soon as there is memory.
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "check.h"
#include "failing_memory.h"
#include "pykv/cache.h"
#include "pykv/errors.h"

using namespace pykv;
using failing_memory::Mode;

namespace {

constexpr std::uint32_t kDim = 8;
constexpr std::uint32_t kCells = 1024;

std::vector<Token> text(std::uint32_t length, Token from) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

std::vector<Token> joined(std::vector<Token> head, const std::vector<Token>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

// What a user can see of a cache. Nodes are left out: without memory they merge later.
struct View {
  struct Sequence {
    Span bounds;
    Pos exact_upto;
    std::vector<float> k, v;
    friend bool operator==(const Sequence&, const Sequence&) = default;
  };
  std::map<SeqId, Sequence> sequences;
  std::vector<std::uint64_t> numbers;
  friend bool operator==(const View&, const View&) = default;
};

// A cache in which every kind of thing is there: shared and private cells, an announced
// prompt, tokens without ids, idle prefixes with a fork, free blocks with memory.
struct World {
  World() {
    CacheConfig config = small();
    config.cells = kCells;
    config.watermarks = {0.2, 0.5};
    config.clock = [this] { return ticks += 1; };
    cache = std::make_unique<Cache>(std::move(config), backend);
    whole = cache->create();
    append(whole, text(100, 0));
    branch = cache->fork(whole);
    append(branch, text(30, 500));
    prompt = joined(text(100, 0), text(50, 700));
    announced = cache->open({}, prompt).seq;
    // Half of what they announced is computed: their place is inside a node of both.
    leader = cache->open({}, text(60, 6000)).seq;
    append(leader, text(25, 6000));
    follower = cache->fork(leader);
    empty = cache->create();
    nameless = cache->create();
    append({nameless, 40, {}});
    for (const Token tail : {3000, 4000}) {
      const SeqId seq = cache->create({1});
      append(seq, joined(text(40, 2000), text(30, tail)));
      cache->erase(seq);
    }
    const SeqId gone = cache->create();
    append({gone, 64, {}});
    cache->erase(gone);
  }

  static CacheConfig small() {
    LayerSpec spec;
    spec.kv_heads = 1;
    spec.k_dim = spec.v_dim = kDim;
    CacheConfig config;
    config.layers = {spec};
    config.type_k = config.type_v = DType::f32;
    config.ropes = {{.dims = kDim}};
    config.cells = 64;
    return config;
  }

  void plan_for(std::vector<StepRequest> requests) { plan = cache->plan(requests); }
  void begin(std::vector<StepRequest> requests) {
    plan_for(std::move(requests));
    step.emplace(cache->commit(plan.value()));
    if (buffer) backend.destroy_buffer(*buffer);
    buffer = backend.create_buffer(2 * step->rows(), kDim);
    std::vector<float> values;
    for (const Pos position : step->positions())
      values.insert(values.end(), kDim, static_cast<float>(position));
    backend.upload(rows(), values);
  }
  void begin_and_write(std::vector<StepRequest> requests) {
    begin(std::move(requests));
    step->write(0, rows(), rows());
  }
  void append(const StepRequest& request) {
    begin_and_write({request});
    step->finish();
    step.reset();
  }
  void append(SeqId seq, const std::vector<Token>& tokens) { append(ids(seq, tokens)); }
  static StepRequest ids(SeqId seq, const std::vector<Token>& tokens) {
    return {seq, static_cast<std::uint32_t>(tokens.size()), tokens};
  }
  // Idle and private tokens in runs of length 1, beside free cells.
  void fragment() {
    std::vector<StepRequest> ones;
    for (std::uint64_t i = cache->stats().cells_free; i > 0; --i) ones.push_back({cache->create(), 1, {}});
    begin_and_write(ones);
    step->finish();
    step.reset();
    const auto erase = [&](CellIndex parity) {
      std::erase_if(ones, [&](const StepRequest& one) {
        if (cache->runs(one.seq).front().cell % 2 != parity) return false;
        cache->erase(one.seq);
        return true;
      });
    };
    erase(0);
    append({cache->create(), 70, {}});
    const SeqId idle = cache->create();
    append(idle, text(70, 20000));
    cache->erase(idle);
    erase(1);
  }
  Rows rows() const { return {*buffer, 0, step->rows(), kDim}; }
  Rows more_rows() const { return {*buffer, step->rows(), step->rows(), kDim}; }

  View view() const {
    View out;
    for (const SeqId seq : cache->sequences()) {
      Cache::RowValues rows = cache->read_rows(seq, 0, std::nullopt);
      out.sequences[seq] = {cache->bounds(seq), cache->exact_upto(seq), std::move(rows.k), std::move(rows.v)};
    }
    const CacheStats s = cache->stats();
    out.numbers = {s.cells_computing,
                   s.cells_active,
                   s.cells_idle,
                   s.cells_free,
                   s.bytes_committed,
                   s.tree_tokens,
                   s.sequences,
                   cache->match({}, prompt),
                   cache->match({1}, joined(text(40, 2000), text(30, 4000)))};
    return out;
  }

  double ticks = 0;
  Backend backend{BackendConfig{1, "scalar"}};
  std::unique_ptr<Cache> cache;
  SeqId whole, branch, announced, leader, follower, nameless, empty;
  std::vector<Token> prompt;
  std::optional<BufferId> buffer;
  std::optional<Plan> plan;
  std::optional<Step> step;
};

struct Operation {
  const char* name;
  std::function<void(World&)> run;
  std::function<void(World&)> prepare = [](World&) {};
};

const std::vector<Token> kNew = text(90, 9000), kMiddle = text(60, 0), kAgain = text(30, 500);
const std::vector<Token> kRest = text(50, 700), kHalf = text(10, 6025);

// One line for every public operation; several where it goes several ways.
const std::vector<Operation> kOperations = {
    {"construct a backend", [](World&) { Backend(BackendConfig{4, "scalar"}); }},
    {"construct", [](World& w) { Cache(World::small(), w.backend); }},
    {"create", [](World& w) { w.cache->create(); }},
    {"open what is new", [](World& w) { w.cache->open({}, kNew); }},
    {"open what is known", [](World& w) { w.cache->open({}, w.prompt); }},
    {"open a part of a node", [](World& w) { w.cache->open({}, kMiddle); }},
    {"open without reuse", [](World& w) { w.cache->open({}, w.prompt, 0); }},
    {"match", [](World& w) { (void)w.cache->match({}, w.prompt); }},
    {"fork", [](World& w) { w.cache->fork(w.branch); }},
    {"fork what is announced", [](World& w) { w.cache->fork(w.announced); }},
    {"remove a private tail", [](World& w) { w.cache->remove(w.branch, Span{110, 130}); }},
    {"remove a shared tail", [](World& w) { w.cache->remove(w.branch, Span{37, 130}); }},
    {"remove a tail without ids", [](World& w) { w.cache->remove(w.nameless, Span{5, 40}); }},
    {"remove the middle", [](World& w) { w.cache->remove(w.branch, Span{20, 125}); }},
    {"discard", [](World& w) { w.cache->discard(w.branch, 110); }},
    {"copy a prefix", [](World& w) { w.cache->copy(w.branch, Span{0, 77}, w.empty); }},
    {"copy a span", [](World& w) { w.cache->copy(w.branch, Span{50, 120}, w.nameless); }},
    {"shift", [](World& w) { w.cache->shift(w.branch, Span{60, 130}, 10); }},
    {"shift to one rotation too many", [](World& w) { w.cache->shift(w.branch, Span{40, 133}, 1); },
     [](World& w) {
       for (Pos i = 0; i < 3; ++i) w.cache->shift(w.branch, Span{100 - 20 * i, 130 + i}, 1);
     }},
    {"divide what is shared", [](World& w) { w.cache->divide(w.branch, Span{0, 130}, 3); }},
    {"divide its own", [](World& w) { w.cache->divide(w.nameless, Span{0, 30}, 4); }},
    {"keep", [](World& w) { w.cache->keep(std::vector{w.whole, w.nameless}); }},
    {"clear", [](World& w) { w.cache->clear(w.branch); }},
    {"clear what is announced", [](World& w) { w.cache->clear(w.announced); }},
    {"erase", [](World& w) { w.cache->erase(w.branch); }},
    {"erase what is announced", [](World& w) { w.cache->erase(w.announced); }},
    {"erase what is half computed", [](World& w) { w.cache->erase(w.leader); }},
    {"erase tokens without ids", [](World& w) { w.cache->erase(w.nameless); }},
    {"erase_all", [](World& w) { w.cache->erase_all(); }},
    {"plan ids", [](World& w) { w.plan_for({World::ids(w.branch, kNew), {w.nameless, 70, {}}}); }},
    {"plan what does not fit", [](World& w) { w.plan_for({{w.nameless, kCells, {}}}); }},
    {"commit", [](World& w) { w.step.emplace(w.cache->commit(w.plan.value())); },
     [](World& w) {
       w.plan_for({World::ids(w.branch, kNew), {w.nameless, 400, {}}});
       CHECK(w.plan && w.plan->blocks_to_commit() > 1);
     }},
    {"write", [](World& w) { w.step->write(0, w.rows(), w.rows()); },
     [](World& w) { w.begin({World::ids(w.branch, kNew)}); }},
    {"attend", [](World& w) { w.step->attend(0, w.rows(), w.more_rows(), {1, 1.0F}); },
     [](World& w) { w.begin_and_write({World::ids(w.branch, kNew)}); }},
    {"finish what is new", [](World& w) { w.step->finish(); },
     [](World& w) { w.begin_and_write({World::ids(w.branch, kNew), {w.nameless, 3, {}}}); }},
    {"finish what others have", [](World& w) { w.step->finish(); },
     [](World& w) { w.begin_and_write({World::ids(w.whole, kAgain)}); }},
    {"finish what is announced", [](World& w) { w.step->finish(); },
     [](World& w) { w.begin_and_write({World::ids(w.announced, kRest)}); }},
    {"finish more of what is announced", [](World& w) { w.step->finish(); },
     [](World& w) { w.begin_and_write({World::ids(w.leader, kHalf)}); }},
    {"finish other than half computed", [](World& w) { w.step->finish(); },
     [](World& w) { w.begin_and_write({World::ids(w.follower, kNew)}); }},
    {"finish without ids what is half computed", [](World& w) { w.step->finish(); },
     [](World& w) { w.begin_and_write({{w.follower, 5, {}}}); }},
    {"finish other than announced", [](World& w) { w.step->finish(); },
     [](World& w) { w.begin_and_write({World::ids(w.announced, kNew)}); }},
    {"rollback", [](World& w) { w.step->rollback(); },
     [](World& w) { w.begin({World::ids(w.branch, kNew), {w.nameless, 3, {}}}); }},
    {"destroy a step", [](World& w) { w.step.reset(); },
     [](World& w) { w.begin({World::ids(w.announced, kRest)}); }},
    {"evict a part", [](World& w) { w.cache->evict(35, EvictReason::demand); }},
    {"evict everything", [](World& w) { w.cache->evict(kCells, EvictReason::demand); }},
    {"reclaim", [](World& w) { w.cache->reclaim(600); }},
    {"compact", [](World& w) { CHECK(w.cache->compact(1 << 20) > 0); }, [](World& w) { w.fragment(); }},
    {"compact what is next to nothing",
     [](World& w) { CHECK(w.cache->compact(40 * w.cache->stats().bytes_per_cell) > 0); },
     [](World& w) { w.fragment(); }},
    {"reset_prefixes", [](World& w) { w.cache->reset_prefixes(); }},
    {"set_watermarks", [](World& w) { w.cache->set_watermarks({0.1, 0.2}); }},
    {"stats", [](World& w) { (void)w.cache->stats(); }},
    {"runs", [](World& w) { (void)w.cache->runs(w.branch); }},
    {"shared_cells", [](World& w) { (void)w.cache->shared_cells(w.branch); }},
    {"sequences", [](World& w) { (void)w.cache->sequences(); }},
    {"prefix_nodes", [](World& w) { (void)w.cache->prefix_nodes(); }},
    {"read_rows", [](World& w) { (void)w.view(); }},
    {"check_integrity", [](World& w) { w.cache->check_integrity(); }},
};

bool succeeds(World& world, const Operation& operation) {
  try {
    operation.run(world);
    return true;
  } catch (const std::bad_alloc&) {
  } catch (const OutOfMemory&) {
  }
  return false;
}

void report(const Operation& operation, std::int64_t failing, Mode mode, const char* what) {
  std::fprintf(stderr, "%s, request %lld%s: %s\n", operation.name, static_cast<long long>(failing),
               mode == Mode::one ? "" : " and all behind it", what);
  check::fail(__FILE__, __LINE__, operation.name);
}

// Whether request `failing` was made, so that a later one is worth trying.
bool fail_at(const Operation& operation, std::int64_t failing, Mode mode, const View& expected) {
  World world;
  operation.prepare(world);
  const View before = world.view();
  failing_memory::arm(failing, mode);
  const bool done = succeeds(world, operation);
  const bool failed = failing_memory::disarm();
  world.cache->check_integrity();
  if (done) {  // perhaps without what only helps others; but what it is for is there
    if (world.view().sequences.size() != expected.sequences.size())
      report(operation, failing, mode, "it succeeded with another result");
    if (!failed && world.view() != expected)
      report(operation, failing, mode, "without failure the result differs");
    return failed;
  }
  if (world.view() != before) report(operation, failing, mode, "it failed and changed something");
  if (!succeeds(world, operation)) report(operation, failing, mode, "it fails again, with memory");
  world.cache->check_integrity();
  if (world.view() != expected) report(operation, failing, mode, "after a failure the result differs");
  return failed;
}

}  // namespace

TEST(an_operation_without_memory_changes_nothing_and_succeeds_later) {
  std::int64_t tried = 0;
  for (const Operation& operation : kOperations) {
    World reference;
    operation.prepare(reference);
    operation.run(reference);
    reference.cache->check_integrity();
    const View expected = reference.view();
    for (const Mode mode : {Mode::one, Mode::all_from}) {
      const int failures = check::failures();
      for (std::int64_t failing = 0; check::failures() == failures; ++failing) {
        try {
          if (!fail_at(operation, failing, mode, expected)) break;
          ++tried;
        } catch (const std::exception& error) {
          failing_memory::disarm();
          report(operation, failing, mode, error.what());
        }
      }
    }
  }
  CHECK(tried > 500);
}
