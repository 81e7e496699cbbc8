#include "engine/loop.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "pykv/errors.h"

namespace pykv::engine {

namespace {

// With nothing to do, reclaim still ticks and the snapshot's times move on.
constexpr double kIdleSeconds = 1.0;

std::uint32_t longest(const Engine::Config& config, const Cache& cache) {
  const CacheStats stats = cache.stats();
  std::uint64_t cells = stats.cells_capacity;
  const std::uint64_t block_bytes = cache.layout().block_bytes();  // 0: only recurrent layers
  if (stats.bytes_budget > 0 && block_bytes > 0)
    cells = std::min<std::uint64_t>(cells, stats.bytes_budget / block_bytes * kBlockCells);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(cells, config.context));
}

void insert(std::vector<SessionPtr>& sessions, SessionPtr session) {
  const auto place =
      std::upper_bound(sessions.begin(), sessions.end(), session,
                       [](const SessionPtr& a, const SessionPtr& b) { return precedes(*a, *b); });
  sessions.insert(place, std::move(session));
}

SessionPtr take(std::vector<SessionPtr>& sessions, RequestId id) {
  const auto place =
      std::find_if(sessions.begin(), sessions.end(), [&](const SessionPtr& s) { return s->id == id; });
  if (place == sessions.end()) return nullptr;
  SessionPtr session = std::move(*place);
  sessions.erase(place);
  return session;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

}  // namespace

StepLoop::StepLoop(Engine::Config config, Decoder& decoder, Cache& cache)
    : config_(std::move(config)),
      decoder_(decoder),
      cache_(cache),
      longest_(longest(config_, cache)),
      inbox_(config_.limits),
      events_(config_.event_capacity),
      limits_(config_.limits),
      started_at_(config_.clock()),
      published_(std::make_shared<const EngineSnapshot>()) {
  publish();
}

std::vector<EngineEvent> StepLoop::drain() {
  std::vector<EngineEvent> events = events_.drain();
  if (events.size() >= config_.event_capacity) inbox_.poke();
  return events;
}

void StepLoop::set_limits(const EngineLimits& limits) {
  pykv::validate(limits);
  inbox_.set_limits(limits);
}

void StepLoop::set_watermarks(const Watermarks& marks) {
  pykv::validate(marks);
  inbox_.set_watermarks(marks);
}

void StepLoop::run() {
  while (!inbox_.closed()) {
    if (step() || inbox_.wait(kIdleSeconds)) continue;
    reclaim(0);
    publish();
  }
}

bool StepLoop::step() {
  try {
    return step_unguarded();
  } catch (const std::exception& error) {
    end_all(FinishReason::failed, std::string("[Engine.step] internal error: ") + error.what());
    publish();
    events_.append(outgoing_);
    return true;
  }
}

bool StepLoop::step_unguarded() {
  Commands commands = inbox_.take();
  bool busy = !commands.empty();
  apply(std::move(commands));
  end_overdue();
  std::uint32_t rows = 0;
  if (!events_.full()) {
    const double begin = config_.clock();
    admit();
    follow();
    rows = run_batch();
    if (rows > 0) metrics_.step(config_.clock() - begin);
  }
  busy = busy || rows > 0 || !outgoing_.empty();
  if (busy) {
    reclaim(rows);
    publish();  // before the events, so that who has seen an event finds it counted
    events_.append(outgoing_);
  }
  return busy;
}

void StepLoop::apply(Commands commands) {
  if (commands.limits) take_limits(*commands.limits);
  if (commands.watermarks) cache_.set_watermarks(*commands.watermarks);
  for (SessionPtr& session : commands.submitted) {
    set_rank(*session, limits_.ageing_seconds);
    insert(waiting_, std::move(session));
  }
  for (const RequestId request : commands.cancelled) cancel_now(request);
}

void StepLoop::take_limits(const EngineLimits& limits) {
  limits_ = limits;
  for (auto* sessions : {&waiting_, &running_}) {
    for (SessionPtr& session : *sessions) set_rank(*session, limits_.ageing_seconds);
    std::stable_sort(sessions->begin(), sessions->end(),
                     [](const SessionPtr& a, const SessionPtr& b) { return precedes(*a, *b); });
  }
}

void StepLoop::end_overdue() {
  const double now = config_.clock();
  std::vector<RequestId> overdue;
  for (const auto* sessions : {&waiting_, &running_})
    for (const SessionPtr& session : *sessions)
      if (session->overdue(now)) overdue.push_back(session->id);
  for (const RequestId id : overdue) {
    SessionPtr session = take(waiting_, id);
    if (!session) session = take(running_, id);
    const std::string got = std::to_string(session->generated()) + " of " +
                            std::to_string(session->max_tokens) + " tokens were generated";
    const std::string error = "[Engine.step] the request had " + seconds_text(*session->request.timeout) +
                              ", in which " + got + "; raise timeout or send fewer requests at once";
    finish(std::move(session), FinishReason::timeout, error);
  }
}

void StepLoop::cancel_now(RequestId request) {
  if (SessionPtr session = take_out(request)) finish(std::move(session), FinishReason::cancelled);
}

SessionPtr StepLoop::take_running(RequestId id) { return take(running_, id); }

Session* StepLoop::running_find(RequestId id) const {
  const auto place =
      std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s->id == id; });
  return place == running_.end() ? nullptr : place->get();
}

void StepLoop::wait_again(SessionPtr session) { insert(waiting_, std::move(session)); }

void StepLoop::start_running(SessionPtr session) { insert(running_, std::move(session)); }

void StepLoop::leave_pool(Session& session) {
  if (!session.seq) return;
  cache_.erase(*std::exchange(session.seq, std::nullopt));
  session.stored = 0;
}

void StepLoop::finish(SessionPtr session, FinishReason reason, std::string error) {
  finish_choices(*session, reason, error);
  EngineEvent event = session->event(EngineEvent::Kind::finished, config_.clock());
  event.reason = reason;
  event.error = std::move(error);
  outgoing_.push_back(std::move(event));
  metrics_.finish(reason);
  leave_pool(*session);
}

void StepLoop::end_all(FinishReason reason, const std::string& error) {
  for (auto* sessions : {&running_, &waiting_}) {
    for (SessionPtr& session : std::exchange(*sessions, {})) {
      try {
        finish(std::move(session), reason, error);
      } catch (const std::exception&) {
        continue;  // its event is out; what it held in a broken cache cannot be given back
      }
    }
  }
}

void StepLoop::close_all() {
  apply(inbox_.take());
  end_all(FinishReason::cancelled, {});
  publish();
  events_.append(outgoing_);
}

void StepLoop::reclaim(std::uint32_t wanted) {
  const double begin = config_.clock();
  cache_.reclaim(wanted);
  metrics_.reclaim(config_.clock() - begin);
}

void StepLoop::publish() {
  inbox_.set_waiting(waiting_.size());
  auto out = std::make_shared<EngineSnapshot>(metrics_.snapshot());
  const double now = config_.clock();
  out->number = ++published_number_;
  out->uptime_seconds = now - started_at_;
  out->cache = cache_.stats();
  out->watermarks = cache_.watermarks();
  out->limits = limits_;
  out->waiting = static_cast<std::uint32_t>(waiting_.size());
  for (const auto* sessions : {&running_, &waiting_}) {
    for (const SessionPtr& session : *sessions) {
      if (session->seq) ++(session->generating() ? out->generating : out->prefilling);
      if (out->sessions.size() < kMaxSessionViews) out->sessions.push_back(session->view(now));
    }
  }
  published_.store(std::move(out));
}

}  // namespace pykv::engine
