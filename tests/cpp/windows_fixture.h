// A cache whose layers have windows as those of Gemma 3, for tests: what it keeps, not what it
// computes.
#pragma once

#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "check.h"
#include "pykv/cache.h"

namespace windows {

using namespace pykv;

inline constexpr std::uint32_t kDim = 8;
inline constexpr NamespaceId ns{0};

inline std::vector<Token> range(Token begin, Token end) {
  std::vector<Token> tokens(static_cast<std::size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

inline std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// `layers` layers, all but every sixth with a window.
inline LayerTable gemma(std::uint32_t layers, std::uint32_t window, std::uint32_t dim) {
  LayerSpec layer;
  layer.kv_heads = 1;
  layer.k_dim = layer.v_dim = dim;
  LayerTable table(layers, layer);
  for (std::uint32_t i = 0; i < layers; ++i) {
    if (i % 6 == 5) continue;
    table[i].window_kind = WindowKind::standard;
    table[i].window_size = window;
  }
  return with_window_pools(table);
}

struct Fixture {
  explicit Fixture(std::uint64_t cells, std::uint32_t window = 16, std::uint32_t layers = 6) {
    config.layers = gemma(layers, window, kDim);
    config.ropes = {RopeParams{}};
    config.ropes[0].dims = kDim;
    config.type_k = config.type_v = DType::f32;
    config.cells = cells;
    config.resume_spacing = 64;
    config.clock = [this] { return ticks += 1; };
  }
  Cache& make() {
    cache = std::make_unique<Cache>(config, backend);
    return *cache;
  }

  bool append(std::vector<StepRequest> requests) {
    const std::optional<Plan> plan = cache->plan(requests);
    if (!plan) return false;
    Step step = cache->commit(*plan);
    write(step);
    step.finish();
    return true;
  }
  bool append(SeqId seq, std::span<const Token> tokens) {
    return append({{seq, static_cast<std::uint32_t>(tokens.size()), tokens}});
  }
  void write(Step& step) {
    const BufferId buffer = backend.create_buffer(step.rows(), kDim);
    const Rows rows{buffer, 0, step.rows(), kDim};
    for (std::uint32_t layer = 0; layer < config.layers.size(); ++layer) step.write(layer, rows, rows);
    backend.destroy_buffer(buffer);
  }
  // A request as an engine does it: from the cached prefix on, then ends. Returns what it reused.
  std::uint32_t request(const std::vector<Token>& prompt) {
    const Cache::Opened opened = cache->open(ns, prompt);
    CHECK(append(opened.seq, std::span(prompt).subspan(opened.reused)));
    cache->erase(opened.seq);
    cache->check_integrity();
    return opened.reused;
  }
  const PoolStats pool(std::size_t index) const { return cache->stats().pools.at(index); }

  double ticks = 0;
  CacheConfig config;
  Backend backend{BackendConfig{1, "scalar"}};
  std::unique_ptr<Cache> cache;
};

}  // namespace windows
