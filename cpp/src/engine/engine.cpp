#include "pykv/engine.h"

#include <unistd.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "engine/loop.h"
#include "pykv/errors.h"

namespace pykv {

namespace {

void check_range(const char* name, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value < low || value > high)
    throw InvalidArgument("[EngineLimits] " + std::string(name) + " is " + std::to_string(value) +
                          "; it must be " + std::to_string(low) + " to " + std::to_string(high));
}

void check_seconds(const char* name, double value, double high) {
  if (!(value >= 0 && value <= high))
    throw InvalidArgument("[EngineLimits.validate] " + std::string(name) + " is " + std::to_string(value) +
                          "; it must be 0 to " + std::to_string(static_cast<int>(high)));
}

Engine::Config checked(Engine::Config config, const Model& model) {
  validate(config.limits);
  const std::uint32_t trained = model.config().context;
  if (config.context > trained)
    throw InvalidArgument("[Engine] context is " + std::to_string(config.context) +
                          "; the model was made for " + std::to_string(trained) + " tokens");
  if (config.context == 0) config.context = trained;
  if (config.event_capacity == 0)
    throw InvalidArgument("[Engine] event_capacity is 0; it must be at least 1");
  if (!config.clock)
    config.clock = [] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
  return config;
}

}  // namespace

void validate(const EngineLimits& limits) {
  check_range("parallel", limits.parallel, 1, 4096);
  check_range("batch_size", limits.batch_size, 1, Model::max_rows());
  check_range("prefill_chunk", limits.prefill_chunk, 1, Model::max_rows());
  check_range("draft_max", limits.draft_max, 0, engine::kMaxDraft);
  check_range("queue_length", limits.queue_length, 1, 1U << 20U);
  const double gap = limits.gap_factor;
  if (gap != 0 && !(gap >= 1.1 && gap <= 100))
    throw InvalidArgument("[EngineLimits.validate] gap_factor is " + std::to_string(gap) +
                          "; it must be 1.1 to 100, or 0 for a fixed prefill_chunk");
  check_seconds("ageing_seconds", limits.ageing_seconds, 86400);
  if (limits.batch_size < limits.parallel)
    throw InvalidArgument("[EngineLimits] batch_size is " + std::to_string(limits.batch_size) +
                          " and parallel is " + std::to_string(limits.parallel) +
                          "; a step must have a token for each sequence: raise batch_size or lower parallel");
}

struct Engine::Impl {
  Impl(Config config, Model& model, Cache& cache)
      : decoder(model), loop(checked(std::move(config), model), decoder, cache) {}

  // A forked child has the memory but not the thread, and locks as they happened to be.
  bool forked() const { return ::getpid() != owner; }
  engine::StepLoop& checked_loop(const char* method) {
    if (forked())
      throw Error("[Engine." + std::string(method) + "] the engine belongs to process " +
                  std::to_string(owner) + " and this is a fork of it; make the engine after forking");
    return loop;
  }

  const ::pid_t owner = ::getpid();
  engine::ModelDecoder decoder;
  engine::StepLoop loop;
  std::mutex lifecycle;  // guards thread
  std::thread thread;
};

Engine::Engine(Config config, Model& model, Cache& cache)
    : impl_(std::make_unique<Impl>(std::move(config), model, cache)) {}

Engine::~Engine() {
  if (impl_->forked())
    static_cast<void>(impl_.release());  // there is no thread to join here
  else
    stop();
}

void Engine::start() {
  engine::StepLoop& loop = impl_->checked_loop("start");
  const std::lock_guard lock(impl_->lifecycle);
  if (impl_->thread.joinable()) return;
  loop.reopen();
  impl_->thread = std::thread([&loop] { loop.run(); });
}

void Engine::stop() {
  engine::StepLoop& loop = impl_->checked_loop("stop");
  const std::lock_guard lock(impl_->lifecycle);
  loop.request_stop();
  if (impl_->thread.joinable()) impl_->thread.join();
  loop.close_all();
}

RequestId Engine::submit(EngineRequest request) {
  return impl_->checked_loop("submit").submit(std::move(request));
}

void Engine::cancel(RequestId request) { impl_->checked_loop("cancel").cancel(request); }

std::vector<EngineEvent> Engine::drain() { return impl_->checked_loop("drain").drain(); }

int Engine::notify_fd() const { return impl_->checked_loop("notify_fd").notify_fd(); }

std::shared_ptr<const EngineSnapshot> Engine::snapshot() const {
  return impl_->checked_loop("snapshot").snapshot();
}

void Engine::set_limits(const EngineLimits& limits) { impl_->checked_loop("set_limits").set_limits(limits); }

void Engine::set_watermarks(const Watermarks& marks) {
  impl_->checked_loop("set_watermarks").set_watermarks(marks);
}

bool Engine::step_once() {
  engine::StepLoop& loop = impl_->checked_loop("step_once");
  const std::lock_guard lock(impl_->lifecycle);
  if (impl_->thread.joinable())
    throw InvalidArgument("[Engine.step_once] the engine's own thread is running; call stop() first");
  return loop.step();
}

}  // namespace pykv
