// Does one kind of work, named on the command line, in a function that a profiler can tell
// apart from the preparations. The numbers are the same in every run.
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "pykv/cache.h"
#include "pykv/quant.h"

using namespace pykv;

// Callgrind collects inside it alone.
extern "C" void counted_work(const std::function<void()>& work) { work(); }

namespace {

// Through it the compiler calls the function itself, not a copy under another name.
void (*volatile counted)(const std::function<void()>& work) = counted_work;

std::vector<float> numbers(std::size_t n) {
  std::vector<float> values(n);
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 8) * 0x1p-23F - 1;
  }
  return values;
}

Rows filled(Backend& backend, std::uint32_t rows, std::uint32_t width) {
  const Rows made{backend.create_buffer(rows, width), 0, rows, width};
  backend.upload(made, numbers(std::size_t{rows} * width));
  return made;
}

Backend one_thread() { return Backend({.threads = 1, .isa = {}}); }  // PYKV_ISA chooses

void linear(DType type, std::uint32_t rows) {
  constexpr std::uint32_t kOutputs = 576, kInputs = 576;
  Backend backend = one_thread();
  std::vector<std::byte> bytes(row_bytes(type, kInputs) * kOutputs);
  encode_row(type, numbers(std::size_t{kOutputs} * kInputs), bytes);
  const WeightId weight = backend.create_weight(type, kOutputs, kInputs, bytes);
  const Rows in = filled(backend, rows, kInputs), out = filled(backend, rows, kOutputs);
  counted([&] {
    backend.linear(weight, in, out);
    backend.synchronize();
  });
}

constexpr std::uint32_t kHeads = 9, kKvHeads = 3, kDim = 64;

// Sequences of a cache with one layer of SmolLM2's shape.
struct Sessions {
  explicit Sessions(DType type) {
    LayerSpec layer;
    layer.kv_heads = kKvHeads;
    layer.k_dim = layer.v_dim = kDim;
    CacheConfig config;
    config.layers = {layer};
    config.type_k = config.type_v = type;
    config.cells = 1 << 14;
    config.clock = [] { return 0.0; };
    cache = std::make_unique<Cache>(std::move(config), backend);
    kv = filled(backend, 1024, kKvHeads * kDim);
    q = filled(backend, 1024, kHeads * kDim);
    out = filled(backend, 1024, kHeads * kDim);
  }

  Step begin(std::span<const StepRequest> requests) {
    Step step = cache->commit(*cache->plan(requests));
    kv.count = q.count = out.count = step.rows();
    step.write(0, kv, kv);
    backend.synchronize();
    return step;
  }
  void append(SeqId seq, std::span<const Token> tokens) {
    const StepRequest request{seq, static_cast<std::uint32_t>(tokens.size()), tokens};
    begin({&request, 1}).finish();
  }
  void attend(Step& step) { step.attend(0, q, out, {.heads = kHeads, .scale = 0.125F}); }

  Backend backend = one_thread();
  std::unique_ptr<Cache> cache;
  Rows kv, q, out;
};

std::vector<Token> text(std::uint32_t length) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// `rows` tokens each for `count` sessions on one prompt of 700 tokens.
void attention(DType type, std::uint32_t count, std::uint32_t rows) {
  Sessions sessions(type);
  const SeqId first = sessions.cache->create();
  sessions.append(first, text(700));
  std::vector<StepRequest> requests{{first, rows, {}}};
  for (std::uint32_t i = 1; i < count; ++i) requests.push_back({sessions.cache->fork(first), rows, {}});
  Step step = sessions.begin(requests);
  (void)step.attention();
  counted([&] { sessions.attend(step); });
}

// A prompt found, taken over, continued by 50 sessions for 20 steps, and given up.
void control() {
  Sessions sessions(DType::f32);
  Cache& cache = *sessions.cache;
  const std::vector<Token> prompt = text(1000);
  sessions.append(cache.create(), prompt);
  counted([&] {
    std::vector<StepRequest> requests;
    for (int i = 0; i < 50; ++i)
      requests.push_back({cache.open({}, prompt).seq, 1, std::span(prompt).first(1)});
    for (int step = 0; step < 20; ++step) cache.commit(*cache.plan(requests)).rollback();
    for (const StepRequest& request : requests) cache.erase(request.seq);
    cache.evict(500, EvictReason::request);
  });
}

const std::map<std::string, std::function<void()>> kWork{
    {"linear_q4_1_1", [] { linear(DType::q4_1, 1); }},
    {"linear_q4_1_64", [] { linear(DType::q4_1, 64); }},
    {"linear_q8_0_16", [] { linear(DType::q8_0, 16); }},
    {"linear_f16_16", [] { linear(DType::f16, 16); }},
    {"attention_f16_1", [] { attention(DType::f16, 1, 1); }},
    {"attention_f16_64", [] { attention(DType::f16, 1, 64); }},
    {"attention_q8_0_1", [] { attention(DType::q8_0, 1, 1); }},
    {"attention_q8_0_64", [] { attention(DType::q8_0, 1, 64); }},
    {"attention_f16_shared_by_8", [] { attention(DType::f16, 8, 1); }},
    {"control_plane", [] { control(); }},
};

}  // namespace

int main(int argc, char** argv) {
  const auto work = kWork.find(argc == 2 ? argv[1] : "");
  if (work != kWork.end()) {
    work->second();
    return 0;
  }
  for (const auto& [name, unused] : kWork) std::puts(name.c_str());
  return argc == 1 ? 0 : 2;
}
