// cache.h: plans and steps. Arrays are float32 rows, flat over heads.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "arguments.h"
#include "backend_arrays.h"
#include "cache_bindings.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

using FloatRows = py::array_t<float, py::array::c_style>;
using ByteRows = py::array_t<std::uint8_t, py::array::c_style>;
using Unlocked = py::gil_scoped_release;

// Requests of a plan with the ids they refer to.
struct Requests {
  std::vector<StepRequest> list;
  std::vector<std::vector<Token>> tokens;
};

Requests to_requests(const py::sequence& given) {
  Requests requests;
  requests.tokens.reserve(given.size());  // spans point into it
  for (const py::object item : given) {   // held, as in to_tokens()
    const std::string at = "[Cache.plan] request " + std::to_string(requests.list.size());
    if (!(py::isinstance<py::tuple>(item) || py::isinstance<py::list>(item)) || py::len(item) != 2) {
      throw py::type_error(at + " must be a pair (sequence, count or token ids)");
    }
    const auto pair = py::reinterpret_borrow<py::sequence>(item);
    const py::object second = pair[1];
    StepRequest request{{to_int<std::uint64_t>({pair[0]}, at + ": sequence")}, 0, {}};
    if (py::isinstance<py::array>(second) || !PyIndex_Check(second.ptr())) {
      requests.tokens.push_back(to_tokens(second, at + ": token ids"));
      request.tokens = requests.tokens.back();
      request.count = static_cast<std::uint32_t>(request.tokens.size());
    } else {
      request.count = to_int<std::uint32_t>({second}, at + ": count", 1);
    }
    requests.list.push_back(request);
  }
  return requests;
}

std::optional<Plan> plan_lists(const Cache& cache, const py::object& given) {
  if (!py::isinstance<py::sequence>(given))
    throw py::type_error("[Cache.plan] requests must be a sequence of pairs");
  const Requests requests = to_requests(given);
  const Unlocked unlocked;
  return cache.plan(requests.list);
}

std::optional<Plan> plan_arrays(const Cache& cache, const py::object& sequences, const py::object& given,
                                const py::object& given_tokens) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto ids = to_ints<std::uint64_t>(sequences, "[Cache.plan] sequences", 0, kMax);
  const auto counts = to_ints<std::uint32_t>(given, "[Cache.plan] counts", 1, kMaxPos);
  std::vector<Token> tokens;
  if (!given_tokens.is_none()) tokens = to_tokens(given_tokens, "[Cache.plan] tokens");
  const std::uint64_t sum = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  if (ids.size() != counts.size() || (!given_tokens.is_none() && tokens.size() != sum)) {
    throw InvalidArgument(
        "[Cache.plan] " + std::to_string(ids.size()) + " sequences, " + std::to_string(counts.size()) +
        " counts with a sum of " + std::to_string(sum) + " and " + std::to_string(tokens.size()) +
        " tokens; give a count for each sequence, and as many tokens as they sum up to or None");
  }
  std::vector<StepRequest> requests;
  requests.reserve(ids.size());
  std::span<const Token> rest(tokens);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t named = tokens.empty() ? 0 : counts[i];
    requests.push_back({{ids[i]}, counts[i], rest.first(named)});
    rest = rest.subspan(named);
  }
  const Unlocked unlocked;
  return cache.plan(requests);
}

std::optional<Plan> plan(const Cache& cache, const py::object& requests, const py::object& counts,
                         const py::object& tokens) {
  if (!counts.is_none()) return plan_arrays(cache, requests, counts, tokens);
  if (!tokens.is_none()) throw py::type_error("[Cache.plan] tokens need counts; give both, or pairs alone");
  return plan_lists(cache, requests);
}

std::optional<Plan> plan_import(const Cache& cache, const PyInt& sequence, const PyInt& count,
                                const py::object& given) {
  StepRequest request{{to_int<std::uint64_t>(sequence, "[Cache.plan_import] sequence")},
                      to_int<std::uint32_t>(count, "[Cache.plan_import] count", 1, kMaxPos),
                      {}};
  std::vector<Token> tokens;
  if (!given.is_none()) request.tokens = tokens = to_tokens(given, "[Cache.plan_import] tokens");
  const Unlocked unlocked;
  return cache.plan_import(request);
}

void check_shape(const FloatRows& array, std::uint32_t rows, const char* what) {
  if (array.ndim() == 2 && array.shape(0) == static_cast<py::ssize_t>(rows)) return;
  throw InvalidArgument(std::string("[Step.") + what + " must be [" + std::to_string(rows) + ", width]");
}

std::span<const float> values(const FloatRows& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

// Rows on the step's backend, filled without the GIL.
std::unique_ptr<Scratch> upload(Step& step, std::uint32_t count, std::span<const float> from,
                                py::ssize_t width) {
  Backend& backend = step.backend();
  auto rows = std::make_unique<Scratch>(backend, py::ssize_t{count}, width);
  backend.upload(rows->rows(), from);
  return rows;
}

void write(Step& step, const PyInt& layer, const FloatRows& k, const std::optional<FloatRows>& v) {
  const auto index = to_int<std::uint32_t>(layer, "[Step.write] layer");
  check_shape(k, step.rows(), "write] k");
  if (v) check_shape(*v, step.rows(), "write] v");
  const py::ssize_t k_width = k.shape(1);
  const py::ssize_t v_width = v ? v->shape(1) : 0;
  const auto k_values = values(k);
  const auto v_values = v ? values(*v) : std::span<const float>{};
  const Unlocked unlocked;
  const auto k_rows = upload(step, step.rows(), k_values, k_width);
  if (!v) return step.write(index, k_rows->rows(), Rows{});
  const auto v_rows = upload(step, step.rows(), v_values, v_width);
  step.write(index, k_rows->rows(), v_rows->rows());
}

FloatRows read_states(const Step& step, const PyInt& layer, std::uint32_t requests, std::uint32_t elements) {
  const auto index = to_int<std::uint32_t>(layer, "[Step.read_states] layer");
  FloatRows out({static_cast<py::ssize_t>(requests), static_cast<py::ssize_t>(elements)});
  const std::span<float> to(out.mutable_data(), static_cast<std::size_t>(out.size()));
  const Unlocked unlocked;
  step.read_states(index, to);
  return out;
}

void write_states(Step& step, const PyInt& layer, const FloatRows& states) {
  const auto index = to_int<std::uint32_t>(layer, "[Step.write_states] layer");
  const std::span<const float> from(states.data(), static_cast<std::size_t>(states.size()));
  const Unlocked unlocked;
  step.write_states(index, from);
}

FloatRows attend(Step& step, const PyInt& layer, const FloatRows& q, const PyInt& head_count, double scale,
                 double softcap, const std::vector<float>& sinks, const std::vector<float>& alibi_slopes,
                 const std::string& precision, const py::object& rows) {
  const auto index = to_int<std::uint32_t>(layer, "[Step.attend] layer");
  const auto heads = to_int<std::uint32_t>(head_count, "[Step.attend] heads", 1, 1U << 20);
  std::vector<std::uint32_t> only;
  if (!rows.is_none()) {
    const std::vector<Token> numbers = to_tokens(rows, "[Step.attend] only");
    only.assign(numbers.begin(), numbers.end());
  }
  const std::uint32_t count = only.empty() ? step.rows() : static_cast<std::uint32_t>(only.size());
  check_shape(q, count, "attend] q");
  AttentionParams params{
      .heads = heads, .scale = static_cast<float>(scale), .softcap = static_cast<float>(softcap)};
  params.sinks = sinks;
  params.alibi_slopes = alibi_slopes;
  params.precision = parse_precision(precision);
  const auto width = static_cast<py::ssize_t>(std::uint64_t{heads} * step.layer(index).v_dim);
  FloatRows out({py::ssize_t{count}, width});
  const std::span<float> result(out.mutable_data(), static_cast<std::size_t>(out.size()));
  const py::ssize_t q_width = q.shape(1);
  const auto q_values = values(q);
  {
    const Unlocked unlocked;
    const auto q_rows = upload(step, count, q_values, q_width);
    const Scratch out_rows(step.backend(), py::ssize_t{count}, width);
    step.attend(index, q_rows->rows(), out_rows.rows(), params, only);
    step.backend().download(out_rows.rows(), result);
  }
  return out;
}

// Seconds of each of `repeats` rounds through all layers, one after the other.
std::vector<double> time_attend(Step& step, const std::vector<std::uint32_t>& layers, const FloatRows& q,
                                const PyInt& head_count, double scale, const std::string& precision,
                                std::uint32_t repeats) {
  using Steady = std::chrono::steady_clock;
  const auto heads = to_int<std::uint32_t>(head_count, "[Step.time_attend] heads", 1, 1U << 20);
  check_shape(q, step.rows(), "time_attend] q");
  AttentionParams params{.heads = heads, .scale = static_cast<float>(scale)};
  params.precision = parse_precision(precision);
  if (layers.empty()) throw InvalidArgument("[Step.time_attend] layers is empty; name at least one");
  const auto width = static_cast<py::ssize_t>(std::uint64_t{heads} * step.layer(layers.front()).v_dim);
  const py::ssize_t q_width = q.shape(1);
  const auto q_values = values(q);
  std::vector<double> seconds;
  const Unlocked unlocked;
  const auto q_rows = upload(step, step.rows(), q_values, q_width);
  const Scratch out_rows(step.backend(), py::ssize_t{step.rows()}, width);
  for (std::uint32_t i = 0; i < repeats; ++i) {
    const Steady::time_point begin = Steady::now();
    for (const std::uint32_t layer : layers) step.attend(layer, q_rows->rows(), out_rows.rows(), params);
    seconds.push_back(std::chrono::duration<double>(Steady::now() - begin).count());
  }
  return seconds;
}

}  // namespace

void bind_steps(py::module_& m, py::class_<Cache>& cache) {
  py::class_<Plan>(m, "Plan", "Where the tokens of a step will go; valid until the cache changes.")
      .def_property_readonly("tokens", &Plan::tokens, "Sum of the counts.")
      .def_property_readonly("blocks_to_commit", &Plan::blocks_to_commit,
                             "Blocks whose memory is touched for the first time.")
      .def("__repr__", [](const Plan& plan) {
        return "Plan(tokens=" + std::to_string(plan.tokens()) +
               ", blocks_to_commit=" + std::to_string(plan.blocks_to_commit()) + ")";
      });
  py::class_<Step>(m, "Step", "An open step; rolled back when it is destroyed unfinished.")
      .def_property_readonly("rows", &Step::rows)
      .def_property_readonly("positions",
                             [](const Step& step) {
                               const std::span<const Pos> positions = step.positions();
                               return py::array_t<Pos>(static_cast<py::ssize_t>(positions.size()),
                                                       positions.data());
                             })
      .def_property_readonly(
          "groups",
          [](const Step& step) {
            std::vector<std::pair<std::uint32_t, std::uint32_t>> groups;
            for (const AttentionGroup& group : step.attention().groups) {
              groups.emplace_back(group.first_row, group.rows);
            }
            return groups;
          },
          "(first row, rows) of each request.")
      .def("write", &write, py::arg("layer"), py::arg("k"), py::arg("v") = py::none(),
           "k [rows, kv_heads * k_dim], v [rows, kv_heads * v_dim] or None for a view of K, float32.")
      .def(
          "import_rows",
          [](Step& step, const PyInt& layer, const ByteRows& k, const ByteRows& v) {
            const auto index = to_int<std::uint32_t>(layer, "[Step.import_rows] layer");
            const auto from_k = std::as_bytes(std::span(k.data(), static_cast<std::size_t>(k.size())));
            const auto from_v = std::as_bytes(std::span(v.data(), static_cast<std::size_t>(v.size())));
            const Unlocked unlocked;
            step.import_rows(index, from_k, from_v);
          },
          py::arg("layer"), py::arg("k"), py::arg("v"),
          "Stores rows as Cache.export_rows gives them, uint8, instead of write().")
      .def(
          "attend", &attend, py::arg("layer"), py::arg("q"), py::arg("heads"), py::arg("scale"),
          py::arg("softcap") = 0.0, py::arg("sinks") = std::vector<float>{},
          py::arg("alibi_slopes") = std::vector<float>{}, py::arg("precision") = "exact",
          py::arg("only") = py::none(),
          "q [rows, heads * k_dim] -> float32 [rows, heads * v_dim]. sinks, alibi_slopes: one for each head; "
          "only: int rows of the step, ascending, that q has; None or none: all.")
      .def("time_attend", &time_attend, py::arg("layers"), py::arg("q"), py::arg("heads"), py::arg("scale"),
           py::arg("precision") = "exact", py::arg("repeats") = 1,
           "Seconds of each of `repeats` rounds of attend() over layers of equal width, without copies to "
           "and from NumPy.")
      .def("read_states", &read_states, py::arg("layer"), py::arg("requests"), py::arg("elements"),
           "float32 [requests, elements]: a recurrent layer's states at the beginning of the step.")
      .def("write_states", &write_states, py::arg("layer"), py::arg("states"),
           "Those at its end, float32 [requests, elements].")
      .def("finish", &Step::finish, py::call_guard<Unlocked>(), "Publishes; every layer must be written.")
      .def("rollback", &Step::rollback, py::call_guard<Unlocked>(),
           "Takes everything back; no effect after the end.");
  cache
      .def("plan", &plan, py::arg("requests"), py::arg("counts") = py::none(), py::arg("tokens") = py::none(),
           "Plan for [(sequence, count or token ids), ...], or for arrays of sequences, counts and all "
           "token ids one after the other; None if it does not fit.")
      .def("plan_import", &plan_import, py::arg("sequence"), py::arg("count"), py::arg("tokens") = py::none(),
           "Plan for tokens that another cache has computed, into an empty sequence.")
      .def(
          "commit",
          [](Cache& self, const Plan& given) {
            const Unlocked unlocked;
            return std::make_unique<Step>(self.commit(given));
          },
          py::arg("plan"), "Opens the step; raises StalePlan, OutOfMemory or Busy.");
}

}  // namespace pykv::bindings
