// A cache that computes, and what its sequences should hold. Two layers; each token's K and V
// of the second are made of what it attended to in the first, so that whatever a sequence
// holds wrongly shows in all that follows.
#pragma once

#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "pykv/cache.h"

namespace walk {

using namespace pykv;

inline constexpr std::uint32_t kDim = 8, kHeads = 2, kLayers = 2, kWidth = kDim * kHeads;
inline constexpr float kScale = 0.5F;

using Vector = std::array<float, kDim>;
using Output = std::array<float, kWidth>;

inline RopeParams rope_params() {
  RopeParams rope;
  rope.dims = kDim;
  rope.base = 100;
  return rope;
}

// Which layer forgets, and what it sees.
struct Windows {
  std::uint32_t layer = 0;
  Window window{};
  std::uint32_t pool = 0;
};

inline CacheConfig config(std::uint64_t cells, Windows windows = {}) {
  LayerSpec layer;
  layer.kv_heads = 1;
  layer.k_dim = kDim;
  layer.v_dim = kDim;
  CacheConfig out;
  out.layers.assign(kLayers, layer);
  LayerSpec& forgets = out.layers[windows.layer];
  forgets.window_kind = windows.window.kind;
  forgets.window_size = windows.window.size;
  forgets.pool = windows.pool;
  out.max_sequences = 8;
  out.step_tokens = 40;
  out.resume_spacing = 16;
  out.ropes = {rope_params()};
  out.type_k = DType::f32;
  out.type_v = DType::f32;
  out.cells = cells;
  return out;
}

// The value of a token in one of its roles, from -1 to 1.
inline float value(Token id, std::uint32_t role, std::uint32_t element) {
  std::uint32_t h = static_cast<std::uint32_t>(id) * 0x9e3779b1U + role * 0x85ebca6bU + element * 0xc2b2ae35U;
  h = (h ^ h >> 15) * 0x2c1b3c6dU;
  h ^= h >> 12;
  return static_cast<float>(h % 2001) / 1000.0F - 1.0F;
}

inline void rotate(float* head, Pos position) {
  for (std::uint32_t i = 0; i < kDim / 2; ++i) {
    const double angle = position * std::pow(100.0, -2.0 * i / kDim);
    const double c = std::cos(angle), s = std::sin(angle), a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = static_cast<float>(a * c - b * s);
    head[2 * i + 1] = static_cast<float>(a * s + b * c);
  }
}

// A token as the model has it; K as it was before rotation.
struct Tok {
  Pos pos = 0;
  Token id = 0;
  std::array<Vector, kLayers> k, v;
};

// What a token asks for and stores in a layer, given the output of the layer before.
struct Roles {
  Vector k, v;
  Output q;
};
inline Roles roles(Token id, std::uint32_t layer, const Output& in) {
  Roles out;
  for (std::uint32_t d = 0; d < kDim; ++d) {
    out.k[d] = value(id, 3 * layer, d) + in[d];
    out.v[d] = value(id, 3 * layer + 1, d) + in[kDim + d];
  }
  for (std::uint32_t d = 0; d < kWidth; ++d) out.q[d] = value(id, 3 * layer + 2, d) + 2 * in[d];
  return out;
}

struct Row {
  Tok token;
  Output out{};
};

// A cache that computes.
class Machine {
 public:
  explicit Machine(std::uint64_t cells, Windows windows = {}) : cache(config(cells, windows), backend) {}

  // Does the step with the given tokens, one per row; returns what came out.
  std::vector<Row> compute(Step& step, const std::vector<Token>& ids) {
    std::vector<Row> rows(ids.size());
    const auto n = static_cast<std::uint32_t>(ids.size());
    const Rows k = rows_of(0, n, kDim), v = rows_of(1, n, kDim), q = rows_of(2, n, kWidth),
               out = rows_of(3, n, kWidth);
    std::vector<float> flat_k(n * kDim), flat_v(n * kDim), flat_q(n * kWidth), flat_out(n * kWidth);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      for (std::uint32_t i = 0; i < n; ++i) {
        Tok& token = rows[i].token;
        token.pos = step.positions()[i];
        token.id = ids[i];
        Roles role = roles(ids[i], layer, rows[i].out);
        token.k[layer] = role.k;
        token.v[layer] = role.v;
        rotate(role.k.data(), token.pos);
        for (std::uint32_t head = 0; head < kHeads; ++head) rotate(&role.q[head * kDim], token.pos);
        std::copy(role.k.begin(), role.k.end(), &flat_k[i * kDim]);
        std::copy(role.v.begin(), role.v.end(), &flat_v[i * kDim]);
        std::copy(role.q.begin(), role.q.end(), &flat_q[i * kWidth]);
      }
      backend.upload(k, flat_k);
      backend.upload(v, flat_v);
      backend.upload(q, flat_q);
      step.write(layer, k, v);
      AttentionParams params;
      params.heads = kHeads;
      params.scale = kScale;
      step.attend(layer, q, out, params);
      backend.download(out, flat_out);
      for (std::uint32_t i = 0; i < n; ++i) std::copy_n(&flat_out[i * kWidth], kWidth, rows[i].out.begin());
    }
    return rows;
  }

  Backend backend{BackendConfig{1, "auto"}};
  Cache cache;

 private:
  Rows rows_of(std::size_t which, std::uint32_t count, std::uint32_t width) {
    if (count > room_) {
      for (const BufferId buffer : buffers_) backend.destroy_buffer(buffer);
      buffers_.clear();
      for (std::uint32_t i = 0; i < 4; ++i) buffers_.push_back(backend.create_buffer(2 * count, kWidth));
      room_ = 2 * count;
    }
    return {buffers_[which], 0, count, width};
  }

  std::uint32_t room_ = 0;
  std::vector<BufferId> buffers_;
};

// What a cold run of these tokens gives for each of them.
class ColdRuns {
 public:
  explicit ColdRuns(Windows windows = {}) : windows_{windows.layer, windows.window, 0} {}

  const Output& output(const std::vector<Token>& tokens) {
    if (const auto at = known_.find(tokens); at != known_.end()) return at->second;
    if (known_.size() > 20000) known_.clear();
    Machine machine(512, windows_);
    const StepRequest request{machine.cache.create(), static_cast<std::uint32_t>(tokens.size()), {}};
    Step step = machine.cache.commit(*machine.cache.plan({&request, 1}));
    const std::vector<Row> rows = machine.compute(step, tokens);
    for (std::size_t i = 0; i < rows.size(); ++i)
      known_[{tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1}] = rows[i].out;
    return known_.at(tokens);
  }

 private:
  Windows windows_;
  std::map<std::vector<Token>, Output> known_;
};

// A sequence as it should be.
struct Model {
  NamespaceId name_space;
  Pos exact = 0;
  bool is_moved = false;  // some token stands elsewhere than where it was computed
  std::vector<Tok> tokens;

  bool is_exact() const { return exact == end(); }
  Pos end() const { return tokens.empty() ? 0 : tokens.back().pos + 1; }
  Span bounds() const { return tokens.empty() ? Span{} : Span{tokens.front().pos, end()}; }
  std::vector<Token> ids() const {
    std::vector<Token> out;
    for (const Tok& token : tokens) out.push_back(token.id);
    return out;
  }
  std::vector<Tok> in(Span span) const {
    std::vector<Tok> out;
    for (const Tok& token : tokens)
      if (token.pos >= span.begin && token.pos < span.end) out.push_back(token);
    return out;
  }
};

// The last layer's output for the token at `at`, in float64.
inline std::array<double, kWidth> attention(const Model& model, std::size_t at, const Output& before,
                                            Window window = {}) {
  constexpr std::uint32_t layer = kLayers - 1;
  std::array<double, kWidth> out{};
  for (std::uint32_t head = 0; head < kHeads; ++head) {
    Output q = roles(model.tokens[at].id, layer, before).q;
    rotate(&q[head * kDim], model.tokens[at].pos);
    double sum = 0;
    for (std::size_t i = 0; i <= at; ++i) {
      if (!visible(model.tokens[i].pos, model.tokens[at].pos, window)) continue;
      Vector k = model.tokens[i].k[layer];
      rotate(k.data(), model.tokens[i].pos);
      double score = 0;
      for (std::uint32_t d = 0; d < kDim; ++d) score += static_cast<double>(q[head * kDim + d]) * k[d];
      const double weight = std::exp(kScale * score);
      sum += weight;
      for (std::uint32_t d = 0; d < kDim; ++d) out[head * kDim + d] += weight * model.tokens[i].v[layer][d];
    }
    for (std::uint32_t d = 0; d < kDim; ++d) out[head * kDim + d] /= sum;
  }
  return out;
}

}  // namespace walk
