// engine.h.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "arguments.h"
#include "bindings.h"
#include "cache_bindings.h"
#include "pykv/engine.h"
#include "pykv/errors.h"
#include "sampling_arguments.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

constexpr std::int64_t kMaxUint32 = 0xffffffff;
constexpr std::int64_t kMaxPriority = 1000;

std::uint32_t submit_int(const PyInt& argument, const char* name, std::int64_t lowest = 0,
                         std::int64_t highest = kMaxUint32) {
  const std::string what = "[Engine.submit] " + std::string(name);
  return static_cast<std::uint32_t>(to_int64(argument.value, what, lowest, highest));
}

const char* kind_name(EngineEvent::Kind kind) {
  switch (kind) {
    case EngineEvent::Kind::started:
      return "started";
    case EngineEvent::Kind::token:
      return "token";
    case EngineEvent::Kind::finished:
      break;
  }
  return "finished";
}

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::timeout:
      return "timeout";
    case FinishReason::failed:
      break;
  }
  return "failed";
}

py::list top_of(const EngineEvent& event) {
  py::list out;
  for (const TokenLogprob& item : event.top) out.append(py::make_tuple(item.token, item.logprob));
  return out;
}

py::dict to_dict(const EngineLimits& limits) {
  py::dict d;
  d["parallel"] = limits.parallel;
  d["batch_size"] = limits.batch_size;
  d["prefill_chunk"] = limits.prefill_chunk;
  d["queue_length"] = limits.queue_length;
  d["ageing_seconds"] = limits.ageing_seconds;
  d["gap_factor"] = limits.gap_factor;
  d["draft_max"] = limits.draft_max;
  return d;
}

py::dict to_dict(const Histogram& histogram) {
  py::dict d;
  d["bounds"] = histogram.bounds;
  d["counts"] = histogram.counts;
  d["sum"] = histogram.sum;
  return d;
}

py::dict to_dict(const TenantCounters& counters) {
  py::dict d;
  d["query_tokens"] = counters.query_tokens;
  d["hit_tokens"] = counters.hit_tokens;
  d["miss_tokens"] = counters.miss_tokens;
  return d;
}

py::dict to_dict(const SessionView& session) {
  py::dict d;
  d["request"] = session.request;
  d["tenant"] = session.tenant;
  d["state"] = session.state;
  d["prompt_tokens"] = session.prompt_tokens;
  d["cached_tokens"] = session.cached_tokens;
  d["computed_tokens"] = session.computed_tokens;
  d["generated_tokens"] = session.generated_tokens;
  d["age_seconds"] = session.age_seconds;
  return d;
}

py::dict to_dict(const EngineSnapshot& s) {
  py::dict d;
  d["number"] = s.number;
  d["steps"] = s.steps;
  d["uptime_seconds"] = s.uptime_seconds;
  d["cache"] = bindings::to_dict(s.cache);
  py::dict marks;
  marks["low"] = s.watermarks.low;
  marks["high"] = s.watermarks.high;
  d["watermarks"] = marks;
  d["limits"] = to_dict(s.limits);
  py::dict tenants;
  for (const auto& [name, counters] : s.tenants) tenants[py::str(name)] = to_dict(counters);
  d["tenants"] = tenants;
  d["prompt_tokens"] = s.prompt_tokens;
  d["computed_prompt_tokens"] = s.computed_prompt_tokens;
  d["generated_tokens"] = s.generated_tokens;
  d["requests"] = s.requests;
  d["drafted_tokens"] = s.drafted_tokens;
  d["accepted_tokens"] = s.accepted_tokens;
  d["preempted"] = s.preempted;
  d["resumed"] = s.resumed;
  d["waiting"] = s.waiting;
  d["prefilling"] = s.prefilling;
  d["generating"] = s.generating;
  py::list sessions;
  for (const SessionView& session : s.sessions) sessions.append(to_dict(session));
  d["sessions"] = sessions;
  d["time_to_first_token"] = to_dict(s.time_to_first_token);
  d["inter_token"] = to_dict(s.inter_token);
  d["step_duration"] = to_dict(s.step_duration);
  d["reclaim_duration"] = to_dict(s.reclaim_duration);
  return d;
}

// The limits to change; None: not.
struct LimitChanges {
  std::optional<PyInt> parallel, batch_size, prefill_chunk, queue_length;
  std::optional<double> ageing_seconds, gap_factor;
  std::optional<PyInt> draft_max;

  EngineLimits applied_to(EngineLimits limits, const char* method) const {
    const auto set = [&](const std::optional<PyInt>& value, const char* name, std::uint32_t& limit) {
      if (value) limit = to_int<std::uint32_t>(*value, "[Engine." + std::string(method) + "] " + name);
    };
    set(parallel, "parallel", limits.parallel);
    set(batch_size, "batch_size", limits.batch_size);
    set(prefill_chunk, "prefill_chunk", limits.prefill_chunk);
    set(queue_length, "queue_length", limits.queue_length);
    set(draft_max, "draft_max", limits.draft_max);
    limits.ageing_seconds = ageing_seconds.value_or(limits.ageing_seconds);
    limits.gap_factor = gap_factor.value_or(limits.gap_factor);
    return limits;
  }
};

// The engine and the limits last asked for, to which set_limits() applies its changes.
class PyEngine {
 public:
  PyEngine(Model& model, Cache& cache, const PyInt& context, const PyInt& event_capacity,
           const LimitChanges& limits) {
    Engine::Config config;
    config.context = to_int<std::uint32_t>(context, "[Engine] context");
    config.event_capacity = to_int<std::uint32_t>(event_capacity, "[Engine] event_capacity", 1, 1U << 30U);
    config.limits = limits_ = limits.applied_to({}, "Engine");
    engine_ = std::make_unique<Engine>(std::move(config), model, cache);
  }
  ~PyEngine() {
    const py::gil_scoped_release release;  // stop() waits for the step that is running
    engine_.reset();
  }
  Engine& core() { return *engine_; }

  void set_limits(const LimitChanges& changes) {
    const EngineLimits limits = changes.applied_to(limits_, "set_limits");
    engine_->set_limits(limits);
    limits_ = limits;
  }

 private:
  EngineLimits limits_;
  std::unique_ptr<Engine> engine_;
};

// The arguments of submit().
struct SubmitArgs {
  py::object prompt;
  PyInt max_tokens;
  SamplingArgs sampling;
  py::object stop_tokens;
  std::optional<PyInt> logprobs;
  PyInt name_space;
  std::string tenant;
  PyInt priority;
  bool use_cache;
  PyInt choices;
  std::optional<double> timeout;
  std::optional<PyInt> draft_max;

  EngineRequest request() const {
    EngineRequest out;
    out.prompt = to_tokens(prompt, "[Engine.submit] prompt");
    out.max_tokens = submit_int(max_tokens, "max_tokens", 1);
    out.sampling = sampling.params("[Engine.submit] ");
    out.stop_tokens = to_tokens(stop_tokens, "[Engine.submit] stop_tokens");
    if (logprobs) out.logprobs = submit_int(*logprobs, "logprobs", 0, 20);
    out.name_space = NamespaceId{submit_int(name_space, "name_space")};
    out.tenant = tenant;
    out.priority =
        static_cast<int>(to_int64(priority.value, "[Engine.submit] priority", -kMaxPriority, kMaxPriority));
    out.use_cache = use_cache;
    out.timeout = timeout;
    if (draft_max) out.draft_max = submit_int(*draft_max, "draft_max");
    out.choices = submit_int(choices, "choices", 1);
    return out;
  }
};

RequestId submit(PyEngine& engine, const SubmitArgs& args) {
  EngineRequest request = args.request();
  const py::gil_scoped_release release;
  return engine.core().submit(std::move(request));
}

void bind_event(py::module_& m) {
  py::class_<EngineEvent>(m, "EngineEvent",
                          "What happened to one request. Counts and seconds are those so far.")
      .def_readonly("request", &EngineEvent::request, "Id that submit() returned.")
      .def_property_readonly(
          "kind", [](const EngineEvent& e) { return kind_name(e.kind); },
          "\"started\", \"token\" or \"finished\".")
      .def_readonly("token", &EngineEvent::token, "Kind \"token\": its id.")
      .def_readonly("logprob", &EngineEvent::logprob, "Natural log, if logprobs were asked for, else 0.")
      .def_property_readonly("top", &top_of, "Most likely (token, logprob), most likely first.")
      .def_property_readonly(
          "reason", [](const EngineEvent& e) { return reason_name(e.reason); },
          "Kind \"finished\": \"stop\", \"length\", \"cancelled\", \"timeout\" or \"failed\"; else \"none\".")
      .def_readonly("error", &EngineEvent::error, "Reasons \"failed\" and \"timeout\": message.")
      .def_readonly("prompt_tokens", &EngineEvent::prompt_tokens)
      .def_readonly("cached_tokens", &EngineEvent::cached_tokens, "Prompt tokens that others had computed.")
      .def_readonly("generated_tokens", &EngineEvent::generated_tokens)
      .def_readonly("queue_seconds", &EngineEvent::queue_seconds, "From submit to the first step.")
      .def_readonly("prompt_seconds", &EngineEvent::prompt_seconds, "From there to the first token.")
      .def_readonly("generate_seconds", &EngineEvent::generate_seconds, "From there to the last token.")
      .def("__repr__", [](const EngineEvent& e) {
        return "EngineEvent(request=" + std::to_string(e.request) + ", kind='" + kind_name(e.kind) +
               "', token=" + std::to_string(e.token) + ", reason='" + reason_name(e.reason) + "')";
      });
}

}  // namespace

void bind_engine(py::module_& m) {
  bind_event(m);
  using OptionalInt = const std::optional<PyInt>&;
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<PyEngine>(
      m, "Engine",
      "The step loop: a thread of its own that never takes the GIL. Limits that are None get their defaults. "
      "Raises InvalidArgument. Not usable in a forked child.")
      .def(py::init([](Model& model, Cache& cache, OptionalInt parallel, OptionalInt batch_size,
                       OptionalInt prefill_chunk, OptionalInt queue_length,
                       std::optional<double> ageing_seconds, std::optional<double> gap_factor,
                       OptionalInt draft_max, const PyInt& context, const PyInt& event_capacity) {
             return std::make_unique<PyEngine>(model, cache, context, event_capacity,
                                               LimitChanges{parallel, batch_size, prefill_chunk, queue_length,
                                                            ageing_seconds, gap_factor, draft_max});
           }),
           py::arg("model"), py::arg("cache"), py::kw_only(), py::arg("parallel") = py::none(),
           py::arg("batch_size") = py::none(), py::arg("prefill_chunk") = py::none(),
           py::arg("queue_length") = py::none(), py::arg("ageing_seconds") = py::none(),
           py::arg("gap_factor") = py::none(), py::arg("draft_max") = py::none(), py::arg("context") = 0,
           py::arg("event_capacity") = Engine::Config{}.event_capacity, py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def(
          "start", [](PyEngine& e) { e.core().start(); }, Unlocked(),
          "Starts the thread; no effect if it runs.")
      .def(
          "stop", [](PyEngine& e) { e.core().stop(); }, Unlocked(),
          "Ends after the current step. Open requests finish as \"cancelled\"; drain() still gives their "
          "events.")
      .def(
          "submit",
          [](PyEngine& e, const py::object& prompt, const PyInt& max_tokens, float temperature,
             const PyInt& top_k, float top_p, float min_p, float typical_p, float top_n_sigma,
             float repeat_penalty, const PyInt& repeat_last_n, float presence_penalty,
             float frequency_penalty, const py::dict& logit_bias, const PyInt& seed,
             const py::object& stop_tokens, const std::optional<PyInt>& logprobs, const PyInt& name_space,
             const std::string& tenant, const PyInt& priority, bool use_cache, const PyInt& choices,
             std::optional<double> timeout, OptionalInt draft_max) {
            const SamplingArgs sampling{temperature,
                                        top_k,
                                        top_p,
                                        min_p,
                                        typical_p,
                                        top_n_sigma,
                                        repeat_penalty,
                                        repeat_last_n,
                                        presence_penalty,
                                        frequency_penalty,
                                        logit_bias,
                                        seed};
            return submit(e, {prompt, max_tokens, sampling, stop_tokens, logprobs, name_space, tenant,
                              priority, use_cache, choices, timeout, draft_max});
          },
          py::arg("prompt"), py::arg("max_tokens"), py::kw_only(), PYKV_SAMPLING_ARGUMENTS,
          py::arg("stop_tokens") = py::tuple(), py::arg("logprobs") = py::none(), py::arg("name_space") = 0,
          py::arg("tenant") = "default", py::arg("priority") = 0, py::arg("use_cache") = true,
          py::arg("choices") = 1, py::arg("timeout") = py::none(), py::arg("draft_max") = py::none(),
          "Queues a request and returns its id, of several choices that of the first, from which the others' "
          "ids and seeds go on. max_tokens is cut to what context and pool allow. timeout: seconds to the "
          "last "
          "token. "
          "Raises InvalidArgument, or Busy if the queue is full or the engine stopped.")
      .def(
          "cancel",
          [](PyEngine& e, const PyInt& request) {
            e.core().cancel(to_uint64(request, "[Engine.cancel] request"));
          },
          py::arg("request"), "Takes effect within a step. Unknown or ended requests: no effect.")
      .def(
          "drain", [](PyEngine& e) { return e.core().drain(); }, "Events since the last call, oldest first.")
      .def(
          "notify_fd", [](PyEngine& e) { return e.core().notify_fd(); },
          "Descriptor that is readable while there are events; at most one wake-up per step.")
      .def(
          "snapshot", [](PyEngine& e) { return to_dict(*e.core().snapshot()); },
          "Counters and gauges as of the end of a step, as a nested dict (names of EngineSnapshot).")
      .def(
          "set_limits",
          [](PyEngine& e, OptionalInt parallel, OptionalInt batch_size, OptionalInt prefill_chunk,
             OptionalInt queue_length, std::optional<double> ageing_seconds, std::optional<double> gap_factor,
             OptionalInt draft_max) {
            e.set_limits(
                {parallel, batch_size, prefill_chunk, queue_length, ageing_seconds, gap_factor, draft_max});
          },
          py::kw_only(), py::arg("parallel") = py::none(), py::arg("batch_size") = py::none(),
          py::arg("prefill_chunk") = py::none(), py::arg("queue_length") = py::none(),
          py::arg("ageing_seconds") = py::none(), py::arg("gap_factor") = py::none(),
          py::arg("draft_max") = py::none(),
          "Changes the given limits between steps; the others keep their value.")
      .def(
          "set_watermarks",
          [](PyEngine& e, double low, double high) { e.core().set_watermarks({.low = low, .high = high}); },
          py::arg("low"), py::arg("high"), "Free fractions at which reclaim starts and stops; between steps.")
      .def(
          "step_once", [](PyEngine& e) { return e.core().step_once(); }, Unlocked(),
          "One step in this thread, only while not started. Whether there was anything to do.");
}

}  // namespace pykv::bindings
