// Which requests are accepted, when a waiting one starts, and from which prefix.
#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "engine/loop.h"
#include "pykv/errors.h"

namespace pykv::engine {

namespace {

constexpr std::uint32_t kMaxLogprobs = 20;
constexpr std::uint32_t kMaxChoices = 128;
constexpr double kMaxTimeout = 86400;
constexpr std::size_t kMaxTenantBytes = 128;

// A resumed session must find room for this many further tokens of each running one and
// of its own; otherwise it would soon be preempted again and computing it was in vain.
constexpr std::uint32_t kResumeRoom = 256;

[[noreturn]] void refuse(const std::string& what) { throw InvalidArgument("[Engine.submit] " + what); }

void check_token(Token token, const std::string& name, std::uint32_t vocab) {
  if (token < 0 || static_cast<std::uint32_t>(token) >= vocab)
    refuse(name + " is " + std::to_string(token) + "; token ids of this model are 0 to " +
           std::to_string(vocab - 1));
}

void check_tokens(const std::vector<Token>& tokens, const std::string& name, std::uint32_t vocab) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    check_token(tokens[i], name + "[" + std::to_string(i) + "]", vocab);
}

}  // namespace

void StepLoop::validate(const EngineRequest& request) const {
  const std::size_t length = request.prompt.size();
  if (length == 0) refuse("the prompt is empty; it needs at least one token");
  if (length > config_.context)
    refuse("the prompt has " + std::to_string(length) + " tokens and the context is " +
           std::to_string(config_.context) + "; shorten the prompt");
  if (length > longest_)
    refuse("the prompt has " + std::to_string(length) + " tokens and the pool has room for " +
           std::to_string(longest_) + "; shorten the prompt or enlarge the pool");
  check_tokens(request.prompt, "prompt", decoder_.vocab());
  check_tokens(request.stop_tokens, "stop_tokens", decoder_.vocab());
  if (request.max_tokens == 0) refuse("max_tokens is 0; ask for at least 1");
  if (request.logprobs && *request.logprobs > kMaxLogprobs)
    refuse("logprobs is " + std::to_string(*request.logprobs) + "; the limit is " +
           std::to_string(kMaxLogprobs));
  if (request.tenant.empty() || request.tenant.size() > kMaxTenantBytes)
    refuse("tenant has " + std::to_string(request.tenant.size()) + " bytes; it needs 1 to " +
           std::to_string(kMaxTenantBytes));
  if (request.draft_max && *request.draft_max > kMaxDraft)
    refuse("draft_max is " + std::to_string(*request.draft_max) + "; the limit is " +
           std::to_string(kMaxDraft));
  if (request.timeout && !(*request.timeout > 0 && *request.timeout <= kMaxTimeout))
    refuse("timeout is " + std::to_string(*request.timeout) + " s; it must be more than 0 and at most " +
           std::to_string(static_cast<int>(kMaxTimeout)));
  if (request.choices < 1 || request.choices > kMaxChoices)
    refuse("choices is " + std::to_string(request.choices) + "; it must be 1 to " +
           std::to_string(kMaxChoices));
  pykv::validate(request.sampling);
  for (const auto& [token, bias] : request.sampling.logit_bias)
    check_token(token, "a token of logit_bias", decoder_.vocab());
}

RequestId StepLoop::submit(EngineRequest request) {
  try {
    validate(request);
    auto session = std::make_unique<Session>(std::move(request));
    session->submitted_at = config_.clock();
    // The last token of an answer needs no cell. A prompt as long as the context gets one.
    const std::uint32_t context_room = std::max(config_.context - session->prompt_tokens, 1U);
    const std::uint32_t pool_room = longest_ - session->prompt_tokens + 1;
    session->max_tokens = std::min({session->max_tokens, context_room, pool_room});
    return inbox_.submit(std::move(session));
  } catch (const Error&) {
    metrics_.reject();
    throw;
  }
}

void StepLoop::admit() {
  while (!waiting_.empty()) {
    Session& next = *waiting_.front();
    try {
      if (running_.size() < limits_.parallel && open(next))
        start_front();
      else if (!make_way(next))
        return;
    } catch (const std::exception& error) {
      SessionPtr failed = std::move(waiting_.front());
      waiting_.erase(waiting_.begin());
      finish(std::move(failed), FinishReason::failed, error.what());
    }
  }
}

// The last running session gives way to one that both is more important and precedes it: then it
// cannot do the same in return.
bool StepLoop::make_way(const Session& next) {
  if (running_.empty()) return false;
  const Session& last = *running_.back();
  if (last.request.priority >= next.request.priority || !precedes(next, last)) return false;
  preempt(last.id);
  return true;
}

void StepLoop::start_front() {
  SessionPtr session = std::move(waiting_.front());
  waiting_.erase(waiting_.begin());
  if (std::exchange(session->preempted, false)) metrics_.resume();
  if (!std::exchange(session->admitted_once, true)) {
    session->admitted_at = config_.clock();
    outgoing_.push_back(session->event(EngineEvent::Kind::started, session->admitted_at));
  }
  start_running(std::move(session));
}

bool StepLoop::open(Session& session) {
  const CacheStats before = cache_.stats();
  const std::uint64_t available = before.cells_free + before.cells_idle;
  const bool must_fit = !running_.empty();  // alone it always starts: one progresses
  if (must_fit && refused_ && refused_->id == session.id && available <= refused_->available) return false;
  enter_pool(session);
  if (must_fit && !has_room(session)) {
    leave_pool(session);
    refused_ = {session.id, available};
    return false;
  }
  refused_.reset();
  metrics_.count_hits(session, session.stored);
  return true;
}

void StepLoop::enter_pool(Session& session) {
  const NamespaceId name_space = session.request.name_space;
  const auto reuse = session.request.use_cache ? std::nullopt : std::optional<std::uint32_t>(0);
  const Cache::Opened opened = cache_.open(name_space, session.tokens, reuse);
  session.seq = opened.seq;
  session.stored = opened.reused;
  const std::span<const Token> prompt(session.tokens.data(), session.prompt_tokens);
  session.known = opened.reused + opened.no_resume_point;
  session.prompt_known = session.known + 1 == session.prompt_tokens &&
                         cache_.stored(name_space, prompt) == session.prompt_tokens;
}

bool StepLoop::has_room(const Session& session) const {
  const std::uint32_t each = session.preempted ? kResumeRoom : 1;
  std::uint64_t needed = session.pending() + std::min(each, session.remaining());
  for (const SessionPtr& other : running_) needed += other->pending() + std::min(each, other->remaining());
  const CacheStats stats = cache_.stats();
  // In a step each session has a recurrent state and makes the next one.
  if (stats.states.slots != 0 && 2 * (running_.size() + 1) > stats.states.slots) return false;
  return stats.cells_free + stats.cells_idle >= needed;
}

void StepLoop::follow() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Session& session = *running_[i];
    if (!session.request.use_cache || session.pending() < 2) continue;
    const std::uint32_t known = cache_.match(session.request.name_space, session.tokens);
    if (std::min(known, session.stored + session.pending() - 1) <= session.stored) continue;
    try {
      leave_pool(session);  // what it computed itself stays in the tree and is found again
      enter_pool(session);
      metrics_.count_hits(session, session.stored);
    } catch (const std::exception& error) {
      fail(session.id, error.what());
      --i;
    }
  }
}

}  // namespace pykv::engine
