// Floor 5. The step loop without its thread: Engine gives it one, tests call step().
//
// A step: take commands; admit waiting sessions; let prompts take over what others have
// computed meanwhile; schedule (scheduler.h); find room, by evicting idle cells or by
// preempting a victim (policy.h); run the model; sample; reclaim; publish.
//
// submit, cancel, drain, set_* and snapshot: any thread. step, idle and close_all: one
// thread at a time, the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "engine/event_queue.h"
#include "engine/inbox.h"
#include "engine/metrics.h"
#include "engine/published.h"
#include "engine/session.h"
#include "engine/step_cost.h"
#include "pykv/engine.h"

namespace pykv::engine {

class StepLoop {
 public:
  StepLoop(Engine::Config config, Decoder& decoder, Cache& cache);

  RequestId submit(EngineRequest request);
  void cancel(RequestId request) { inbox_.cancel(request); }
  std::vector<EngineEvent> drain();
  int notify_fd() const { return events_.fd(); }
  std::shared_ptr<const EngineSnapshot> snapshot() const { return published_.load(); }
  void set_limits(const EngineLimits& limits);
  void set_watermarks(const Watermarks& marks);

  // One step; whether there was anything to do. An unforeseen exception fails what is
  // open and is not thrown on.
  bool step();
  void run();  // steps until request_stop(), sleeping when there is nothing to do
  void request_stop() { inbox_.close(); }
  void reopen() { inbox_.open(); }
  void close_all();  // every open request ends as cancelled

 private:
  struct Batch {
    std::vector<Session*> sessions;
    std::vector<RequestId> ids;         // of the sessions, some of which may have ended
    std::vector<StepRequest> requests;  // same order
    std::vector<Token> tokens;          // of all rows
    struct Sampled {
      Session* session = nullptr;
      std::size_t first = 0;  // into logit_rows; as many as its draft has tokens, and one
    };
    std::vector<Sampled> sampled;           // whose last rows give tokens
    std::vector<std::uint32_t> logit_rows;  // … and those rows
    std::uint32_t generating = 0;           // tokens of generating sessions; the others are of prompts
  };

  // loop.cpp
  bool step_unguarded();
  void apply(Commands commands);
  SessionPtr take_running(RequestId id);
  Session* running_find(RequestId id) const;  // nullptr: it has ended
  void start_running(SessionPtr session);
  void wait_again(SessionPtr session);
  void leave_pool(Session& session);
  void take_limits(const EngineLimits& limits);
  void end_overdue();
  void cancel_now(RequestId request);
  void finish(SessionPtr session, FinishReason reason, std::string error = {});
  void end_all(FinishReason reason, const std::string& error);
  void reclaim(std::uint32_t wanted);
  void publish();

  // admission.cpp
  void validate(const EngineRequest& request) const;
  void admit();
  bool make_way(const Session& next);
  void start_front();
  bool open(Session& session);  // false: not enough room yet
  void enter_pool(Session& session);
  bool has_room(const Session& session) const;
  void follow();  // prompts take over what others have computed

  // compute.cpp
  std::uint32_t run_batch();  // rows computed, 0: nothing to do, or it failed
  Batch build();
  std::uint32_t prompt_budget(std::span<const Work> works) const;
  std::optional<Step> find_room(Batch& batch);
  std::optional<Step> try_commit(const Batch& batch);
  bool evict_for(const Batch& batch);
  void preempt(RequestId id);
  void compute(const Batch& batch, Step& step);
  void add(Batch& batch, Session& session, std::span<const Token> tokens);
  Token sample(Session& session, std::span<const float> logits);
  void fail(RequestId id, const std::string& error);

  // speculate.cpp
  void draft();
  bool drop_drafts();  // whether there were some
  void verify(Session& session, std::span<const float> logits);

  // choices.cpp
  void fork_choices(Session& first, std::span<const float> logits);
  // Takes a session out of the queue or the running ones. Its next choice takes its place.
  SessionPtr take_out(RequestId id);
  void succeed(SessionPtr& place, Session& first);
  bool drop_choice(RequestId id);  // that has not begun; false: there is none
  void finish_choices(Session& first, FinishReason reason, const std::string& error);

  Engine::Config config_;
  Decoder& decoder_;
  Cache& cache_;
  std::uint32_t longest_ = 0;  // tokens with KV: the smaller of context and pool

  Inbox inbox_;
  EventQueue events_;
  Metrics metrics_;

  EngineLimits limits_;
  StepCost cost_;
  std::vector<SessionPtr> waiting_;  // by precedes()
  std::vector<SessionPtr> running_;  // by precedes()
  std::vector<EngineEvent> outgoing_;
  std::vector<float> logits_;
  // A waiting session that did not fit, and the free and idle cells there were: until
  // there are more, trying it again is pointless.
  struct Refused {
    RequestId id = 0;
    std::uint64_t available = 0;
  };
  std::optional<Refused> refused_;
  double started_at_ = 0;
  std::uint64_t published_number_ = 0;
  Published<EngineSnapshot> published_;
};

}  // namespace pykv::engine
