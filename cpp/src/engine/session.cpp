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

Work Session::work() const {
  return {.name_space = request.name_space,
          .tokens = tokens,
          .stored = stored,
          .generating = generating(),
          .follows = request.use_cache};
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

bool precedes(const Session& a, const Session& b) {
  if (a.request.priority != b.request.priority) return a.request.priority > b.request.priority;
  return a.id < b.id;
}

}  // namespace pykv::engine
