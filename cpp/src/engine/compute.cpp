// One step's work: who takes part, where there is room for it, the model, the tokens.
#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "engine/loop.h"
#include "pykv/errors.h"

namespace pykv::engine {

namespace {

// Somebody else may change the cache between plan and commit; not for ever.
constexpr int kCommitAttempts = 16;

// Prompt tokens beside generating ones while their time is unknown.
constexpr std::uint32_t kFirstShare = 64;

}  // namespace

std::uint32_t StepLoop::run_batch() {
  Batch batch;
  try {
    draft();
    std::optional<Step> step = find_room(batch);
    if (!step) return 0;
    const double begin = config_.clock();
    compute(batch, *step);
    const auto rows = static_cast<std::uint32_t>(batch.tokens.size());
    cost_.observe(batch.generating, rows - batch.generating, config_.clock() - begin);
    return rows;
  } catch (const std::exception& error) {
    if (batch.ids.empty()) throw;
    for (const RequestId id : batch.ids) fail(id, error.what());
    return 0;
  }
}

void StepLoop::fail(RequestId id, const std::string& error) {
  SessionPtr session = take_running(id);
  if (session) finish(std::move(session), FinishReason::failed, error);
}

std::uint32_t StepLoop::prompt_budget(std::span<const Work> works) const {
  if (limits_.gap_factor == 0) return limits_.prefill_chunk;
  std::uint32_t generating = 0;
  for (const Work& work : works.first(std::min<std::size_t>(works.size(), limits_.parallel)))
    if (work.generating) generating += 1 + work.draft;
  const auto share = cost_.prompt_tokens(generating, limits_.gap_factor);
  return std::min(share.value_or(kFirstShare), limits_.prefill_chunk);
}

StepLoop::Batch StepLoop::build() {
  std::vector<Work> works;
  works.reserve(running_.size());
  for (const SessionPtr& session : running_) works.push_back(session->work());
  Batch batch;
  EngineLimits limits = limits_;
  limits.prefill_chunk = prompt_budget(works);
  for (const Share& share : schedule(works, limits)) {
    Session& session = *running_[share.index];
    if (session.draft.empty()) {
      const Pos point = cache_.next_point(*session.seq);
      const auto most = static_cast<std::uint32_t>(point) - session.stored;
      add(batch, session, works[share.index].tokens.subspan(session.stored, std::min(share.tokens, most)));
      continue;
    }
    session.step_rows.assign(1, session.tokens.back());
    session.step_rows.insert(session.step_rows.end(), session.draft.begin(), session.draft.end());
    add(batch, session, session.step_rows);
  }
  return batch;
}

void StepLoop::add(Batch& batch, Session& session, std::span<const Token> tokens) {
  const auto count = static_cast<std::uint32_t>(tokens.size());
  const bool samples = count >= session.pending();
  batch.sessions.push_back(&session);
  batch.generating += session.generating() ? count : 0;
  batch.ids.push_back(session.id);
  batch.requests.push_back({.seq = *session.seq, .count = count, .tokens = tokens});
  batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
  if (!samples) return;
  batch.sampled.push_back({&session, batch.logit_rows.size()});
  const auto rows = static_cast<std::uint32_t>(batch.tokens.size());
  for (auto row = static_cast<std::uint32_t>(session.draft.size()) + 1; row > 0; --row)
    batch.logit_rows.push_back(rows - row);
}

std::optional<Step> StepLoop::find_room(Batch& batch) {
  for (;;) {
    batch = build();
    if (batch.ids.empty()) return std::nullopt;
    if (std::optional<Step> step = try_commit(batch)) return step;
    if (drop_drafts() || evict_for(batch)) continue;
    std::vector<SessionFacts> facts;
    for (const SessionPtr& session : running_)
      facts.push_back({.id = session->id,
                       .priority = session->request.priority,
                       .tenant_over_floor = 0,
                       .arrival = session->id});
    if (const auto victim = choose_victim(facts)) {
      preempt(running_[*victim]->id);
      continue;
    }
    const Session& last = *running_.front();
    fail(last.id,
         "[Engine.step] no cells are left for a request of " + std::to_string(last.tokens.size()) +
             " tokens that runs alone; sequences outside the engine hold the rest of the pool. Free them" +
             " or enlarge the pool");
  }
}

std::optional<Step> StepLoop::try_commit(const Batch& batch) {
  for (int attempt = 0; attempt < kCommitAttempts; ++attempt) {
    std::optional<Plan> plan = cache_.plan(batch.requests);
    if (!plan) return std::nullopt;
    try {
      return cache_.commit(std::move(*plan));
    } catch (const StalePlan&) {
      continue;
    } catch (const OutOfMemory&) {
      return std::nullopt;  // the machine has less than the budget: as if cells ran out
    }
  }
  throw Error("[Engine.step] the cache changed between plan and commit " + std::to_string(kCommitAttempts) +
              " times in a row; let fewer threads change it");
}

bool StepLoop::evict_for(const Batch& batch) {
  return cache_.make_room(static_cast<std::uint32_t>(batch.tokens.size())) > 0;
}

void StepLoop::preempt(RequestId id) {
  SessionPtr victim = take_running(id);
  leave_pool(*victim);
  victim->preempted = true;
  metrics_.preempt();
  wait_again(std::move(victim));
}

void StepLoop::compute(const Batch& batch, Step& step) {
  const std::size_t vocab = decoder_.vocab();
  logits_.resize(batch.logit_rows.size() * vocab);
  decoder_.forward(step, batch.tokens, batch.logit_rows, logits_);
  step.finish();
  for (std::size_t i = 0; i < batch.sessions.size(); ++i) {
    Session& session = *batch.sessions[i];
    const std::uint32_t upto = session.stored + batch.requests[i].count;
    metrics_.count_computed(session, session.stored, upto);
    session.stored = upto;
  }
  for (const auto& [session, first] : batch.sampled) {
    const RequestId id = session->id;
    const auto logits = std::span<const float>(logits_).subspan(first * vocab);
    try {
      fork_choices(*session, logits.first(vocab));
      if (session->draft.empty())
        sample(*session, logits.first(vocab));
      else
        verify(*session, logits);
    } catch (const std::exception& error) {
      fail(id, error.what());
    }
  }
}

Token StepLoop::sample(Session& session, std::span<const float> logits) {
  const Token token = session.sample(logits);
  const double now = config_.clock();
  metrics_.token(session, now);
  if (session.generated() == 0) session.first_token_at = now;
  session.last_token_at = now;
  session.tokens.push_back(token);

  EngineEvent event = session.event(EngineEvent::Kind::token, now);
  event.token = token;
  if (session.request.logprobs) {
    event.logprob = logprob_of(logits, token).logprob;
    event.top = top_logprobs(logits, *session.request.logprobs);
  }
  outgoing_.push_back(std::move(event));

  const auto& stops = session.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end())
    finish(take_running(session.id), FinishReason::stop);
  else if (session.remaining() == 0)
    finish(take_running(session.id), FinishReason::length);
  return token;
}

}  // namespace pykv::engine
