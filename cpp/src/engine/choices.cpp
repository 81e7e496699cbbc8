// Several answers to one prompt: the first computes it, the others fork from it.
#include <algorithm>
#include <exception>
#include <utility>

#include "engine/loop.h"

namespace pykv::engine {

void StepLoop::fork_choices(Session& first, std::span<const float> logits) {
  for (const RequestId id : std::exchange(first.choices, {})) {
    SessionPtr made = first.choice(id);
    if (running_.size() >= limits_.parallel) {
      wait_again(std::move(made));  // finds the prompt in the tree
      continue;
    }
    Session& choice = *made;
    start_running(std::move(made));
    try {
      choice.seq = cache_.fork(*first.seq);
      choice.stored = first.stored;
      choice.admitted_once = true;
      choice.admitted_at = first.admitted_at;
      outgoing_.push_back(choice.event(EngineEvent::Kind::started, config_.clock()));
      sample(choice, logits);
    } catch (const std::exception& error) {
      fail(id, error.what());
    }
  }
}

SessionPtr StepLoop::take_out(RequestId id) {
  if (drop_choice(id)) return nullptr;
  for (auto* sessions : {&waiting_, &running_}) {
    const auto place =
        std::find_if(sessions->begin(), sessions->end(), [&](const SessionPtr& s) { return s->id == id; });
    if (place == sessions->end()) continue;
    SessionPtr session = std::move(*place);
    if (session->choices.empty())
      sessions->erase(place);
    else
      succeed(*place, *session);
    return session;
  }
  return nullptr;
}

void StepLoop::succeed(SessionPtr& place, Session& first) {
  place = first.successor();
  if (!place->seq) return;
  place->admitted_once = true;
  place->admitted_at = first.admitted_at;
  outgoing_.push_back(place->event(EngineEvent::Kind::started, config_.clock()));
}

bool StepLoop::drop_choice(RequestId id) {
  for (auto* sessions : {&waiting_, &running_}) {
    for (const SessionPtr& session : *sessions) {
      if (std::erase(session->choices, id) == 0) continue;
      finish(session->choice(id), FinishReason::cancelled);
      return true;
    }
  }
  return false;
}

void StepLoop::finish_choices(Session& first, FinishReason reason, const std::string& error) {
  for (const RequestId id : std::exchange(first.choices, {})) finish(first.choice(id), reason, error);
}

}  // namespace pykv::engine
