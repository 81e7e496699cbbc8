// Builds with PYKV_POISON: what nobody holds decodes to NaN, and an access outside a buffer or
// a weight ends the program.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "backend_cpu/mapped_memory.h"
#include "check.h"
#include "pykv/cache.h"

using namespace pykv;

namespace {

constexpr std::uint32_t kDim = 32;
constexpr PoolId kPool{1};  // handles are counted, and the pool is the first one of the backend

struct World {
  explicit World(DType type) {
    LayerSpec layer;
    layer.kv_heads = 2;
    layer.k_dim = layer.v_dim = kDim;
    CacheConfig config;
    config.layers = {layer, layer};
    config.type_k = config.type_v = type;
    config.cells = 192;
    cache = std::make_unique<Cache>(std::move(config), backend);
  }

  Step begin(SeqId seq, std::span<const Token> tokens) {
    const StepRequest request{seq, static_cast<std::uint32_t>(tokens.size()), tokens};
    return cache->commit(cache->plan({&request, 1}).value());
  }
  void append(SeqId seq, std::span<const Token> tokens) {
    Step step = begin(seq, tokens);
    const BufferId buffer = backend.create_buffer(step.rows(), 2 * kDim);
    const Rows rows{buffer, 0, step.rows(), 2 * kDim};
    backend.upload(rows, std::vector<float>(std::size_t{step.rows()} * 2 * kDim, 3.0F));
    for (const std::uint32_t layer : {0U, 1U}) step.write(layer, rows, rows);
    backend.destroy_buffer(buffer);
    step.finish();
  }

  // How many of the cells are NaN in every element of K and V.
  std::size_t poisoned(std::span<const Run> runs) const {
    std::size_t count = 0;
    for (const Run& run : runs)
      for (CellIndex cell = run.cell; cell < run.cell + run.length; ++cell)
        for (const std::uint32_t layer : {0U, 1U}) {
          std::vector<float> k(2 * kDim), v(2 * kDim);
          backend.read_kv(kPool, layer, {&cell, 1}, k, v);
          const auto nan = [](float x) { return std::isnan(x); };
          const bool all = std::all_of(k.begin(), k.end(), nan) && std::all_of(v.begin(), v.end(), nan);
          CHECK(all || std::none_of(k.begin(), k.end(), nan));
          count += all ? 1 : 0;
        }
    return count / 2;
  }

  Backend backend{BackendConfig{1, "scalar"}};
  std::unique_ptr<Cache> cache;
};

std::vector<Token> text(std::uint32_t length) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

// Whether `access` ends the process, tried in a child.
template <class Access>
bool is_fatal(Access access) {
  const ::pid_t child = ::fork();
  if (child == 0) {
    static_cast<void>(::close(STDERR_FILENO));
    access();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

}  // namespace

TEST(cells_that_nobody_holds_are_poisoned) {
  for (const DTypeTraits& type : all_dtypes()) {
    if (!type.for_kv) continue;
    World w(type.type);
    const SeqId seq = w.cache->create();
    w.append(seq, text(100));
    const std::vector<Run> runs = w.cache->runs(seq);
    const SeqId copy = w.cache->fork(seq);
    CHECK(w.poisoned(runs) == 0);
    w.cache->erase(seq);
    w.cache->erase(copy);
    CHECK(w.poisoned(runs) == 0);  // the tree keeps them
    w.cache->evict(37, EvictReason::request);
    CHECK(w.poisoned(runs) == 37);
    w.cache->reset_prefixes();
    CHECK(w.poisoned(runs) == 100);
    const SeqId next = w.cache->create();
    w.append(next, text(100));
    CHECK(w.poisoned(w.cache->runs(next)) == 0);
  }
}

TEST(cells_of_a_step_are_poisoned_until_they_are_written) {
  World w(DType::f16);
  const SeqId seq = w.cache->create();
  Step step = w.begin(seq, text(70));
  const Run first{0, step.attention().segments.front().cell, 1, 0};
  CHECK(w.poisoned({&first, 1}) == 1);
}

TEST(a_step_that_is_rolled_back_leaves_poison) {
  World w(DType::q8_0);
  const SeqId seq = w.cache->create();
  w.append(seq, text(10));
  std::vector<Run> runs;
  {
    Step step = w.begin(seq, text(20));
    const BufferId buffer = w.backend.create_buffer(20, 2 * kDim);
    step.write(0, {buffer, 0, 20, 2 * kDim}, {buffer, 0, 20, 2 * kDim});
    const Segment last = step.attention().segments.back();
    runs = {{0, last.cell + last.length - 20, 20, 0}};
  }
  CHECK(w.poisoned(runs) == 20);
  CHECK(w.poisoned(w.cache->runs(seq)) == 0);
}

TEST(memory_ends_at_a_fence) {
  for (const std::size_t bytes : {4U, 4096U, 5000U, 70000U}) {
    const cpu::MappedMemory memory = cpu::MappedMemory::allocate(bytes);
    volatile std::byte* const data = memory.data();
    CHECK(!is_fatal([&] { data[0] = data[bytes - 1] = std::byte{1}; }));
    CHECK(is_fatal([&] { data[bytes] = std::byte{1}; }));
    CHECK(is_fatal([&] { static_cast<void>(data[bytes]); }));
    CHECK(is_fatal([&] { data[-static_cast<std::ptrdiff_t>(4096)] = std::byte{1}; }));
  }
  cpu::WeightMemory weights;
  volatile std::byte* const one = weights.take(128);
  static_cast<void>(weights.take(128));
  CHECK(is_fatal([&] { one[128] = std::byte{1}; }));
}
