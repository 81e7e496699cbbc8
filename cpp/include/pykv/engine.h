// Floor 5. The step loop: schedule, decode, sample, publish. One C++ thread, which never
// takes Python's GIL. Commands come in and events go out by bounded queues; a file
// descriptor becomes readable at most once per step; at the end of each step an immutable,
// numbered snapshot is published that all readers use without locks.
//
// Each step: one token for every generating request, then prompts fill the rest of the
// token budget (`batch_size`; while others generate, at most `prefill_chunk` prompt tokens, and
// no more than `gap_factor` allows, shared out in arrival order), so a long prompt never blocks
// the others. When
// cells run out, idle prefixes are evicted; then a victim is chosen before the step
// (policy.h). It is preempted: its cells go back, it waits at the front of the queue and
// later recomputes (neither hit nor miss). A request that can never fit fails alone.
//
// Requests are taken up in order of priority and age. One that finds no place is given that of
// a running one of lower priority which it also precedes by age; that one is preempted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pykv/cache.h"
#include "pykv/model.h"
#include "pykv/sampling.h"

namespace pykv {

using RequestId = std::uint64_t;  // chosen by the engine, from 1, never reused

struct EngineRequest {
  std::vector<Token> prompt;     // 1 … context tokens
  std::uint32_t max_tokens = 0;  // >= 1
  SamplingParams sampling;
  std::vector<Token> stop_tokens;         // generation ends *with* one of these
  std::optional<std::uint32_t> logprobs;  // nullopt: none; n: chosen and top n (<= 20)
  NamespaceId name_space;
  std::string tenant = "default";
  int priority = 0;  // higher is more important, see EngineLimits::ageing_seconds
  // Seconds from submit to the last token, > 0. One that is not done by then ends (reason
  // timeout, its cells are freed), waiting or running, at the beginning of the next step.
  std::optional<double> timeout;
  bool use_cache = true;  // false: do not match (still published)
  // Answers to the prompt, 1 … 128, which is computed once: the others fork from it. They have
  // ids of their own and the seeds sampling.seed, sampling.seed + 1, …
  std::uint32_t choices = 1;
  // Tokens guessed and computed ahead, 0 … 32; nullopt: EngineLimits::draft_max.
  std::optional<std::uint32_t> draft_max;
};

enum class FinishReason : std::uint8_t { none, stop, length, cancelled, failed, timeout };

struct EngineEvent {
  RequestId request = 0;
  enum class Kind : std::uint8_t { started, token, finished } kind = Kind::token;
  Token token = 0;  // kind token
  float logprob = 0;
  std::vector<TokenLogprob> top;
  FinishReason reason = FinishReason::none;  // kind finished
  std::string error;                         // reasons failed and timeout: message for the client
  std::uint32_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double queue_seconds = 0, prompt_seconds = 0, generate_seconds = 0;
};

struct EngineLimits {                 // all may change live
  std::uint32_t parallel = 16;        // sequences decoded per step, 1 … 4096
  std::uint32_t batch_size = 256;     // tokens per step, 1 … 8192, >= parallel
  std::uint32_t prefill_chunk = 256;  // prompt tokens per step beside generating ones, at most
  std::uint32_t queue_length = 1024;  // waiting requests; more: Busy
  // Waiting so long weighs as much as one more of priority, so nobody starves; 0: it weighs
  // nothing, 0 … 86400.
  double ageing_seconds = 30;
  // A step with prompts takes about so many times as long as one without, predicted from the
  // steps before: 1.1 … 100; 0: always prefill_chunk.
  double gap_factor = 2.22;
  // Tokens at most that a step computes ahead for a session, guessed from its own text; fewer if
  // guesses are wrong. Answers do not depend on it. 0 … 32, 0: none.
  std::uint32_t draft_max = 0;
};
void validate(const EngineLimits& limits);

struct Histogram {
  std::vector<double> bounds;         // upper bounds, seconds
  std::vector<std::uint64_t> counts;  // bounds.size() + 1, last: +Inf
  double sum = 0;
};

struct SessionView {
  RequestId request = 0;
  std::string tenant, state;  // waiting, prefilling, generating
  std::uint32_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::uint32_t computed_tokens = 0;  // of the prompt, by itself, again after preemption
  double age_seconds = 0;
};

struct TenantCounters {
  std::uint64_t query_tokens = 0, hit_tokens = 0;    // query = hit + sum of misses
  std::map<std::string, std::uint64_t> miss_tokens;  // by reason: first_seen, last_token, no_resume_point
};

// Everything a reader may want, as of the end of one step. Never changes once published.
struct EngineSnapshot {
  std::uint64_t number = 0;  // +1 per publication
  std::uint64_t steps = 0;
  double uptime_seconds = 0;
  CacheStats cache;
  Watermarks watermarks;
  EngineLimits limits;
  std::map<std::string, TenantCounters> tenants;
  std::uint64_t prompt_tokens = 0;           // computed or reused, counted once a request
  std::uint64_t computed_prompt_tokens = 0;  // really computed, recomputation included
  std::uint64_t generated_tokens = 0;
  std::map<std::string, std::uint64_t>
      requests;  // by outcome: stop, length, cancelled, failed, timeout, rejected
  std::uint64_t drafted_tokens = 0, accepted_tokens = 0;  // guessed, and right
  std::uint64_t preempted = 0, resumed = 0;
  std::uint32_t waiting = 0, prefilling = 0, generating = 0;
  std::vector<SessionView> sessions;  // at most 1000
  Histogram time_to_first_token, inter_token, step_duration, reclaim_duration;
};

class Engine {
 public:
  struct Config {
    EngineLimits limits;
    std::uint32_t context = 0;           // longest prompt + answer, 0: the model's
    std::size_t event_capacity = 65536;  // events waiting for drain(); full: steps pause
    Clock clock;                         // any thread calls it; default: steady clock
  };
  // Model, cache and backend must outlive the engine. The thread starts with start().
  Engine(Config config, Model& model, Cache& cache);
  ~Engine();  // stop()

  void start();
  void stop();  // ends after the current step; open requests finish as cancelled

  // Validates and queues. Throws InvalidArgument (prompt too long, id out of range, …;
  // messages name value and limit) or Busy (queue full). The id of the first choice; the
  // others have the ids that follow it.
  RequestId submit(EngineRequest request);
  void cancel(RequestId request);  // unknown or ended: no effect; takes effect within a step

  // Events since the last call, oldest first. After notify_fd() became readable.
  std::vector<EngineEvent> drain();
  int notify_fd() const;

  std::shared_ptr<const EngineSnapshot> snapshot() const;  // lock-free for readers

  // Applied between steps; the returned future generation shows up in the snapshot.
  void set_limits(const EngineLimits& limits);
  void set_watermarks(const Watermarks& marks);

  // Runs exactly one step in the calling thread (tests; only while not started).
  // Returns whether there was anything to do.
  bool step_once();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pykv
