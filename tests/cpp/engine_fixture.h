// A decoder small enough for tests of the step loop, on a real cache: one layer whose keys,
// values and queries are pseudo-random per token, so that every logit depends on all tokens
// before it. What a wrong prefix or position would change, changes the answer.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/loop.h"
#include "pykv/errors.h"

namespace fixture {

using namespace pykv;
using namespace pykv::engine;

inline constexpr std::uint32_t kVocab = 48;
inline constexpr std::uint32_t kDim = 8;

inline float noise(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t x = a * 0x9e3779b9U + b * 0x85ebca6bU + c * 0xc2b2ae35U + 1U;
  x = (x ^ (x >> 15U)) * 0x2c1b3c6dU;
  x = (x ^ (x >> 12U)) * 0x297a2d39U;
  return static_cast<float>((x ^ (x >> 15U)) >> 8U) / 8388608.0F - 1.0F;
}

class TinyDecoder final : public Decoder {
 public:
  explicit TinyDecoder(Backend& backend, std::uint32_t context) : backend_(backend), context_(context) {}
  std::uint32_t vocab() const override { return kVocab; }
  std::uint32_t context() const override { return context_; }

  void forward(Step& step, std::span<const Token> tokens, std::span<const std::uint32_t> logit_rows,
               std::span<float> logits) override {
    if (poison && std::find(tokens.begin(), tokens.end(), *poison) != tokens.end())
      throw Error("[TinyDecoder.forward] poisoned");
    rows.push_back(static_cast<std::uint32_t>(tokens.size()));
    if (on_forward) on_forward(tokens.size());
    attention = step.attention();
    const auto n = static_cast<std::uint32_t>(tokens.size());
    const Rows k = filled(tokens, 1), v = filled(tokens, 2), q = filled(tokens, 3), out = filled(tokens, 4);
    step.write(0, k, v);
    step.attend(0, q, out, {.heads = 1, .scale = 1.0F});
    std::vector<float> hidden(std::size_t{n} * kDim);
    backend_.download(out, hidden);
    for (const Rows& buffer : {k, v, q, out}) backend_.destroy_buffer(buffer.buffer);
    for (std::size_t i = 0; i < logit_rows.size(); ++i)
      project(std::span<const float>(hidden).subspan(std::size_t{logit_rows[i]} * kDim, kDim),
              tokens[logit_rows[i]], logits.subspan(i * kVocab, kVocab));
  }

  std::optional<Token> poison;                  // forward() throws if it sees this token
  std::vector<std::uint32_t> rows;              // of each step so far
  std::function<void(std::size_t)> on_forward;  // told the rows
  AttentionBatch attention;                     // of the last step

 private:
  Rows filled(std::span<const Token> tokens, std::uint32_t kind) {
    const auto n = static_cast<std::uint32_t>(tokens.size());
    std::vector<float> values(std::size_t{n} * kDim);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 2.0F * noise(kind, static_cast<std::uint32_t>(tokens[i / kDim]), i % kDim);
    const Rows made{backend_.create_buffer(n, kDim), 0, n, kDim};
    backend_.upload(made, values);
    return made;
  }

  static void project(std::span<const float> hidden, Token token, std::span<float> logits) {
    for (std::uint32_t t = 0; t < kVocab; ++t) {
      float sum = noise(5, static_cast<std::uint32_t>(token), t);
      for (std::uint32_t d = 0; d < kDim; ++d) sum += 3.0F * hidden[d] * noise(6, d, t);
      logits[t] = sum;
    }
  }

  Backend& backend_;
  std::uint32_t context_;
};

struct Setup {
  std::uint32_t cells = 4096;
  std::uint32_t context = 2048;
  EngineLimits limits = {};
  std::size_t event_capacity = 65536;
};

inline CacheConfig cache_config(std::uint32_t cells) {
  LayerSpec layer;
  layer.kv_heads = 1;
  layer.k_dim = layer.v_dim = kDim;
  CacheConfig config;
  config.layers = {layer};
  config.type_k = config.type_v = DType::f32;
  config.cells = cells;
  config.watermarks = {.low = 0, .high = 0};
  return config;
}

// A loop with all that is below it, and what came out of it.
class Bench {
 public:
  explicit Bench(const Setup& setup)
      : backend({.threads = 1, .isa = "scalar"}),
        cache(cache_config(setup.cells), backend),
        decoder(backend, setup.context),
        loop({.limits = setup.limits,
              .context = setup.context,
              .event_capacity = setup.event_capacity,
              .clock = [this] { return 1e-3 * static_cast<double>(++ticks); }},
             decoder, cache) {}

  // Drains into `tokens` and `ends`.
  void collect() {
    for (EngineEvent& event : loop.drain()) {
      if (event.kind == EngineEvent::Kind::started) started.push_back(event.request);
      if (event.kind == EngineEvent::Kind::token) tokens[event.request].push_back(event.token);
      if (event.kind == EngineEvent::Kind::finished) {
        finished.push_back(event.request);
        ends[event.request] = event;
      }
    }
  }
  bool step() {
    const bool busy = loop.step();
    collect();
    return busy;
  }
  void run(int most = 100000) {
    while (most-- > 0 && step()) {
    }
  }
  // Steps until the request has generated so many tokens.
  void run_until(RequestId id, std::size_t generated) {
    while (tokens[id].size() < generated && step()) {
    }
  }

  std::atomic<std::uint64_t> ticks{0};  // the clock: 1 ms a look
  Backend backend;
  Cache cache;
  TinyDecoder decoder;
  StepLoop loop;
  std::vector<RequestId> started, finished;
  std::map<RequestId, std::vector<Token>> tokens;
  std::map<RequestId, EngineEvent> ends;
};

inline std::vector<Token> text(std::uint32_t length, std::uint32_t seed) {
  std::vector<Token> out(length);
  for (std::uint32_t i = 0; i < length; ++i)
    out[i] = static_cast<Token>((noise(7, seed, i) + 1.0F) / 2.0F * static_cast<float>(kVocab - 1));
  return out;
}

inline std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline EngineRequest greedy(std::vector<Token> prompt, std::uint32_t max_tokens) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

inline EngineRequest drawn(std::vector<Token> prompt, std::uint32_t max_tokens, std::uint64_t seed) {
  EngineRequest request = greedy(std::move(prompt), max_tokens);
  request.sampling = {.temperature = 1.0F, .top_k = 0, .top_p = 1.0F, .min_p = 0, .seed = seed};
  return request;
}

// The tokens of a request that has an engine and a pool of so many cells for itself.
inline std::vector<Token> solo_in(std::uint32_t cells, const EngineRequest& request) {
  Bench bench({.cells = cells, .context = cells / 2});
  const RequestId id = bench.loop.submit(request);
  bench.run();
  return bench.tokens[id];
}
inline std::vector<Token> solo(const EngineRequest& request) { return solo_in(4096, request); }

}  // namespace fixture
