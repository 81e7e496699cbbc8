// Floor 5. One request from submit to its end. Belongs to the inbox until the loop takes
// it, then to the loop's thread alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/prompt_lookup.h"
#include "engine/scheduler.h"
#include "pykv/engine.h"

namespace pykv::engine {

struct Session {
  explicit Session(EngineRequest from);

  RequestId id = 0;
  EngineRequest request;      // its prompt is moved into `tokens`
  std::vector<Token> tokens;  // prompt and what has been generated
  Sampler sampler;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t max_tokens = 0;  // the request's, cut to what context and pool allow

  PromptLookup lookup;
  std::vector<Token> draft;      // guessed for the step that is being made
  std::vector<Token> step_rows;  // the newest token and the draft, while the step runs

  std::optional<SeqId> seq;    // while admitted
  std::uint32_t stored = 0;    // tokens with KV in `seq`
  std::uint32_t known = 0;     // tokens that were stored when it entered the pool
  std::uint32_t counted = 0;   // prompt tokens that are in the hit and miss counters
  std::uint32_t cached = 0;    // … of them taken from others
  std::uint32_t computed = 0;  // prompt tokens computed here, again after preemption
  bool prompt_known = false;   // the tree held the whole prompt when it was last matched
  bool preempted = false;      // waits to be resumed

  std::vector<RequestId> choices;  // further ones, which begin when the prompt is computed

  double rank = 0;  // see precedes()
  double submitted_at = 0, admitted_at = 0, first_token_at = 0, last_token_at = 0;
  bool admitted_once = false;

  std::uint32_t generated() const { return static_cast<std::uint32_t>(tokens.size()) - prompt_tokens; }
  std::uint32_t pending() const { return static_cast<std::uint32_t>(tokens.size()) - stored; }
  std::uint32_t remaining() const { return max_tokens - generated(); }  // tokens to generate
  bool generating() const { return generated() > 0 && pending() == 1; }

  // Another answer to the same prompt, as this one was when it was submitted.
  std::unique_ptr<Session> choice(RequestId other) const;
  // The first of `choices`, in the place of this session, which leaves the pool to it.
  std::unique_ptr<Session> successor();
  // The token after those that there are.
  Token sample(std::span<const float> logits);

  bool overdue(double now) const { return request.timeout && now - submitted_at > *request.timeout; }
  Work work() const;
  EngineEvent event(EngineEvent::Kind kind, double now) const;  // with all counts and times so far
  SessionView view(double now) const;
};

using SessionPtr = std::unique_ptr<Session>;

// Higher rank first, then arrival. All sessions age alike, so ranks do not change while they wait:
// priority * ageing_seconds - submitted_at. A preempted session keeps its rank and so waits in
// front of all that came later with its priority.
void set_rank(Session& session, double ageing_seconds);
bool precedes(const Session& a, const Session& b);

}  // namespace pykv::engine
