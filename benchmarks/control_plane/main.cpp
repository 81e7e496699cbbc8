// The control plane from C++: medians of single calls, in pools of a million cells.
// Prints one JSON object per line. Started by benchmarks/control_plane.py.
//
//     control_plane [SHAPE ...]
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <numeric>

#include "pools.h"

namespace {

std::size_t heap_bytes = 0;   // in use, as the allocator rounds them
std::size_t heap_blocks = 0;  // allocated so far

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  heap_bytes += malloc_usable_size(memory);
  ++heap_blocks;
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) heap_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

using namespace pykv;
using namespace control_plane;

namespace {

constexpr int kSamples = 501;

using Action = std::function<void()>;

void print(const Pool& pool, const char* row, double value, const char* unit) {
  std::printf("{\"shape\": \"%s\", \"row\": \"%s\", \"value\": %.4f, \"unit\": \"%s\"}\n", pool.name.c_str(),
              row, value, unit);
  std::fflush(stdout);
}

// Median time of `timed` in microseconds; `before` and `after` are not timed.
double median(const Action& before, const Action& timed, const Action& after, int samples = kSamples) {
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    before();
    const auto begin = std::chrono::steady_clock::now();
    timed();
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    after();
  }
  std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
  return times[static_cast<std::size_t>(samples) / 2];
}

const Action kNothing = [] {};

void measure_fork(Pool& pool) {
  SeqId made{};
  print(pool, "fork",
        median(
            kNothing, [&] { made = pool.cache->fork(pool.source); }, [&] { pool.cache->erase(made); }),
        "us");
}

void measure_match(Pool& pool) {
  std::uint32_t found = 0;
  print(pool, "match 4096",
        median(kNothing, [&] { found = pool.cache->match({}, pool.prompt); }, kNothing), "us");
  if (found != kPrompt) throw std::runtime_error("the prompt is not in the pool");
}

// `sessions` of them take `tokens` each.
void measure_step(Pool& pool, const char* row, std::uint32_t sessions, std::uint32_t tokens) {
  std::vector<std::vector<Token>> ids(sessions);
  std::vector<StepRequest> requests(sessions);
  std::optional<Step> step;
  const auto prepare = [&] {
    for (std::uint32_t i = 0; i < sessions; ++i) {
      ids[i] = pool.text.next(tokens);
      requests[i] = {pool.sessions[i], tokens, ids[i]};
    }
  };
  const auto take = [&] { step.emplace(pool.cache->commit(*pool.cache->plan(requests))); };
  const std::string name(row);
  print(pool, ("plan + commit " + name).c_str(),
        median(prepare, take,
               [&] {
                 pool.write(*step);
                 step->finish();
                 step.reset();
               }),
        "us");
  print(pool, ("finish " + name).c_str(),
        median(
            [&] {
              prepare();
              take();
              pool.write(*step);
            },
            [&] { step->finish(); }, [&] { step.reset(); }),
        "us");
  prepare();
  const std::size_t before = heap_blocks;
  take();
  print(pool, ("allocations of plan + commit " + name).c_str(), static_cast<double>(heap_blocks - before),
        "");
}

void measure_remove(Pool& pool) {
  SeqId seq{};
  const auto whole = [&] { pool.cache->remove(seq, Span{0, kPrompt}); };
  const auto end = [&] { pool.cache->erase(seq); };
  print(pool, "remove 4096 private",
        median(
            [&] {
              seq = pool.cache->create();
              pool.append(seq, kPrompt);
            },
            whole, end, 101),
        "us");
  std::vector<Token> longer = pool.prompt;
  longer.push_back(0);
  print(pool, "remove 4096 shared", median([&] { seq = pool.cache->open({}, longer).seq; }, whole, end, 101),
        "us");
}

void measure_evict(Pool& pool) {
  std::uint32_t freed = 0;
  print(pool, "evict a leaf",
        median(kNothing, [&] { freed = pool.cache->evict(kLeaf, EvictReason::request); }, kNothing), "us");
  if (freed != kLeaf) throw std::runtime_error("not a leaf was evicted");
}

void measure_stats(Pool& pool) {
  std::uint64_t cells = 0;
  print(pool, "stats", median(kNothing, [&] { cells += pool.cache->stats().cells_active; }, kNothing), "us");
}

// The first calls find something to move, in most shapes.
void measure_compact(Pool& pool) {
  const std::uint64_t bytes = 1024 * pool.cache->stats().bytes_per_cell;
  std::uint32_t moved = 0;
  print(pool, "compact 1024",
        median(kNothing, [&] { moved = pool.cache->compact(bytes); }, kNothing, 9), "us");
  print(pool, "cells moved by the last of them", moved, "");
}

void measure(const std::string& shape) {
  const std::size_t before = heap_bytes;
  const std::unique_ptr<Pool> pool = make_pool(shape);
  const std::size_t text = pool->prompt.capacity() * sizeof(Token);
  const CacheStats stats = pool->cache->stats();
  print(*pool, "metadata per cell", static_cast<double>(heap_bytes - before - text) / kCells, "B");
  print(*pool, "tree nodes", static_cast<double>(stats.tree_nodes), "");
  print(*pool, "cells used", static_cast<double>(stats.cells_active + stats.cells_idle), "");
  measure_stats(*pool);
  measure_fork(*pool);
  measure_match(*pool);
  if (shape != "windows") {  // no idle leaves there, and no removal of what windows have let go
    measure_evict(*pool);
    measure_remove(*pool);
  }
  measure_step(*pool, "16 x 1", kSessions, 1);
  measure_step(*pool, "1 x 16", 1, kSessions);
  measure_compact(*pool);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> all = shapes();
    const std::vector<std::string> named(argv + 1, argv + argc);
    for (const std::string& shape : named.empty() ? all : named) measure(shape);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
