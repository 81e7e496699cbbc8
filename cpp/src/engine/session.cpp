#include "engine/session.h"

#include <utility>

namespace pykv::engine {

Session::Session(EngineRequest from)
    : request(std::move(from)),
      tokens(std::move(request.prompt)),
      sampler(request.sampling),
      prompt_tokens(static_cast<std::uint32_t>(tokens.size())),
      max_tokens(request.max_tokens) {
  request.prompt.clear();
}

std::unique_ptr<Session> Session::choice(RequestId other) const {
  EngineRequest wanted = request;
  wanted.prompt.assign(tokens.begin(), tokens.begin() + prompt_tokens);
  wanted.sampling.seed = request.sampling.seed + (other - id);
  wanted.use_cache = true;  // the prompt's cells are those of its own request
  auto made = std::make_unique<Session>(std::move(wanted));
  made->id = other;
  made->max_tokens = max_tokens;
  made->counted = prompt_tokens;
  made->cached = cached;
  made->submitted_at = submitted_at;
  made->rank = rank;
  return made;
}

std::unique_ptr<Session> Session::successor() {
  std::unique_ptr<Session> next = choice(choices.front());
  next->choices.assign(choices.begin() + 1, choices.end());
  choices.clear();
  next->request.use_cache = request.use_cache;
  next->seq = std::exchange(seq, std::nullopt);
  next->stored = stored;
  next->counted = counted;
  next->computed = computed;
  next->prompt_known = prompt_known;
  next->preempted = preempted;
  return next;
}

Token Session::sample(std::span<const float> logits) {
  return sampler.sample(logits, {.tokens = tokens, .prompt_tokens = prompt_tokens});
}

Work Session::work() const {
  return {.name_space = request.name_space,
          .tokens = tokens,
          .stored = stored,
          .generating = generating(),
          .follows = request.use_cache,
          .draft = static_cast<std::uint32_t>(draft.size())};
}

EngineEvent Session::event(EngineEvent::Kind kind, double now) const {
  EngineEvent out;
  out.request = id;
  out.kind = kind;
  out.prompt_tokens = prompt_tokens;
  out.cached_tokens = cached;
  out.generated_tokens = generated();
  out.queue_seconds = (admitted_once ? admitted_at : now) - submitted_at;
  if (admitted_once) out.prompt_seconds = (generated() > 0 ? first_token_at : now) - admitted_at;
  if (generated() > 0) out.generate_seconds = last_token_at - first_token_at;
  return out;
}

SessionView Session::view(double now) const {
  SessionView out;
  out.request = id;
  out.tenant = request.tenant;
  out.state = !seq ? "waiting" : generating() ? "generating" : "prefilling";
  out.prompt_tokens = prompt_tokens;
  out.cached_tokens = cached;
  out.computed_tokens = computed;
  out.generated_tokens = generated();
  out.age_seconds = now - submitted_at;
  return out;
}

void set_rank(Session& session, double ageing_seconds) {
  const int priority = session.request.priority;
  session.rank = ageing_seconds > 0 ? priority * ageing_seconds - session.submitted_at : priority;
}

bool precedes(const Session& a, const Session& b) { return a.rank != b.rank ? a.rank > b.rank : a.id < b.id; }

}  // namespace pykv::engine
