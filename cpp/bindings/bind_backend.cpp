// dtype.h, quant.h, backend.h. The operations of Backend take and give
// NumPy arrays here, through buffers made for the call: for tests and experiments. The
// model and the cache use the C++ interface, where rows stay on the backend.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "backend_arrays.h"
#include "bindings.h"
#include "pykv/backend.h"
#include "pykv/errors.h"
#include "pykv/precision.h"
#include "pykv/quant.h"

namespace py = pybind11;

namespace pykv::bindings {

DType parse_dtype(const std::string& name) {
  std::string known;
  for (const DTypeTraits& t : all_dtypes()) {
    if (name == t.name) return t.type;
    known += known.empty() ? t.name : std::string(", ") + t.name;
  }
  throw InvalidArgument("[DType] type \"" + name.substr(0, 40) + "\" is unknown; use one of " + known);
}

namespace {

using Bytes = py::array_t<std::uint8_t, py::array::c_style>;

std::span<const std::byte> view_bytes(const Bytes& array) {
  return {reinterpret_cast<const std::byte*>(array.data()), static_cast<std::size_t>(array.size())};
}

Floats linear(Backend& backend, std::uint32_t weight, std::uint32_t outputs, const Floats& x) {
  const Scratch in(backend, "x", x);
  const Scratch out(backend, x.shape(0), outputs);
  without_gil([&] { backend.linear(WeightId{weight}, in.rows(), out.rows()); });
  return out.values();
}

std::vector<Floats> linears(Backend& backend, const std::vector<std::uint32_t>& weights,
                            const std::vector<std::uint32_t>& outputs, const Floats& x,
                            const std::vector<std::uint32_t>& precise) {
  const Scratch in(backend, "x", x);
  std::vector<WeightId> ids;
  for (const std::uint32_t weight : weights) ids.emplace_back(weight);
  std::vector<std::unique_ptr<Scratch>> outs;
  std::vector<Rows> rows;
  for (const std::uint32_t width : outputs) {
    outs.push_back(std::make_unique<Scratch>(backend, x.shape(0), width));
    rows.push_back(outs.back()->rows());
  }
  without_gil([&] { backend.linear(ids, in.rows(), rows, precise); });
  std::vector<Floats> values;
  for (const auto& out : outs) values.push_back(out->values());
  return values;
}

// Seconds of each of `repeats` rounds through all the weights, one after the other.
std::vector<double> time_linear(Backend& backend, const std::vector<std::uint32_t>& weights,
                                std::uint32_t outputs, const Floats& x, std::uint32_t repeats) {
  using Steady = std::chrono::steady_clock;
  const Scratch in(backend, "x", x);
  const Scratch out(backend, x.shape(0), outputs);
  std::vector<double> seconds;
  without_gil([&] {
    for (std::uint32_t i = 0; i < repeats; ++i) {
      const Steady::time_point begin = Steady::now();
      for (const std::uint32_t weight : weights) backend.linear(WeightId{weight}, in.rows(), out.rows());
      backend.synchronize();
      seconds.push_back(std::chrono::duration<double>(Steady::now() - begin).count());
    }
  });
  return seconds;
}

Limit parse_limit(const std::string& name) {
  if (name == "f32_operations") return Limit::f32_operations;
  if (name == "int8_operations") return Limit::int8_operations;
  if (name == "read_bytes") return Limit::read_bytes;
  throw InvalidArgument("[Backend.measure_limit] limit \"" + name.substr(0, 40) +
                        "\" is unknown; use f32_operations, int8_operations or read_bytes");
}

void bind_measurement(py::class_<Backend>& c) {
  c.def("time_linear", &time_linear, py::arg("weights"), py::arg("outputs"), py::arg("x"), py::arg("repeats"),
        "Seconds of each of `repeats` rounds of linear() through all the weights (handles of equal shape), "
        "without copies to and from NumPy.")
      .def(
          "measure_limit",
          [](Backend& backend, const std::string& limit, double seconds) {
            const Limit kind = parse_limit(limit);
            const py::gil_scoped_release release;
            return backend.measure_limit(kind, seconds);
          },
          py::arg("limit"), py::arg("seconds") = 0.2,
          "What all threads reach together, per second: \"f32_operations\" or \"int8_operations\" (a "
          "multiply-add is two) in registers, or \"read_bytes\" from memory.");
}

Floats embed(Backend& backend, std::uint32_t table, std::uint32_t width, const List<Token>& tokens) {
  const Scratch out(backend, tokens.size(), width);
  without_gil([&] { backend.embed(WeightId{table}, view(tokens), out.rows()); });
  return out.values();
}

Floats rms_norm(Backend& backend, const Floats& x, std::uint32_t gain, float epsilon, std::uint32_t parts) {
  const Scratch in(backend, "x", x);
  const Scratch out(backend, x.shape(0), x.shape(1));
  without_gil([&] { backend.rms_norm(in.rows(), WeightId{gain}, epsilon, out.rows(), parts); });
  return out.values();
}

Floats rope(Backend& backend, const Floats& x, const List<Pos>& positions, std::uint32_t heads,
            const RopeParams& params) {
  const Scratch rows(backend, "x", x);
  without_gil([&] { backend.rope(rows.rows(), heads, params, view(positions)); });
  return rows.values();
}

Floats silu_mul(Backend& backend, const Floats& gate, const Floats& up) {
  const Scratch g(backend, "gate", gate);
  const Scratch u(backend, "up", up);
  without_gil([&] { backend.silu_mul(g.rows(), u.rows()); });
  return g.values();
}

Floats gelu_mul(Backend& backend, const Floats& gate, const Floats& up) {
  const Scratch g(backend, "gate", gate);
  const Scratch u(backend, "up", up);
  without_gil([&] { backend.gelu_mul(g.rows(), u.rows()); });
  return g.values();
}

Floats softcap(Backend& backend, const Floats& x, float cap) {
  const Scratch rows(backend, "x", x);
  without_gil([&] { backend.softcap(rows.rows(), cap); });
  return rows.values();
}

Floats multiply(Backend& backend, const Floats& a, const Floats& by) {
  const Scratch x(backend, "a", a);
  const Scratch other(backend, "by", by);
  without_gil([&] { backend.multiply(x.rows(), other.rows()); });
  return x.values();
}

Floats add(Backend& backend, const Floats& a, const Floats& x) {
  const Scratch accumulator(backend, "a", a);
  const Scratch other(backend, "x", x);
  without_gil([&] { backend.add(accumulator.rows(), other.rows()); });
  return accumulator.values();
}

Floats gather(Backend& backend, const Floats& x, const List<std::uint32_t>& rows) {
  const Scratch in(backend, "x", x);
  const Scratch out(backend, rows.size(), x.shape(1));
  without_gil([&] { backend.gather(in.rows(), view(rows), out.rows()); });
  return out.values();
}

void bind_types(py::module_& m) {
  m.def(
      "kv_types",
      [] {
        std::vector<std::string> names;
        for (const DTypeTraits& t : all_dtypes())
          if (t.for_kv) names.emplace_back(t.name);
        return names;
      },
      "Names of the types K and V can be stored in.");
  m.def(
      "encode_row",
      [](const std::string& type, const Floats& values) {
        const DType dtype = parse_dtype(type);
        Bytes out(static_cast<py::ssize_t>(row_bytes(dtype, static_cast<std::size_t>(values.size()))));
        encode_row(dtype, view(values),
                   {reinterpret_cast<std::byte*>(out.mutable_data()), static_cast<std::size_t>(out.size())});
        return out;
      },
      py::arg("type"), py::arg("values"),
      "float32 values -> uint8 array in GGUF's row layout, by the rules of quant.h.");
  m.def(
      "decode_row",
      [](const std::string& type, const Bytes& bytes) {
        const DType dtype = parse_dtype(type);
        const DTypeTraits& t = traits(dtype);
        Floats out(bytes.size() / static_cast<py::ssize_t>(t.block_bytes) *
                   static_cast<py::ssize_t>(t.block_elements));
        decode_row(dtype, view_bytes(bytes), {out.mutable_data(), static_cast<std::size_t>(out.size())});
        return out;
      },
      py::arg("type"), py::arg("data"), "uint8 array in GGUF's row layout -> float32 values.");
}

void bind_operations(py::class_<Backend>& c) {
  c.def(
       "create_weight",
       [](Backend& backend, const std::string& type, std::uint32_t rows, std::uint32_t cols,
          const Bytes& data, const std::string& precision) {
         return backend
             .create_weight(parse_dtype(type), rows, cols, view_bytes(data), parse_precision(precision))
             .value;
       },
       py::arg("type"), py::arg("rows"), py::arg("cols"), py::arg("data"), py::arg("precision") = "fast",
       "Copies a [rows, cols] matrix, uint8 in GGUF's row layout; returns its handle. precision: \"fast\" "
       "or \"exact\" multiplication.")
      .def("linear", &linear, py::arg("weight"), py::arg("outputs"), py::arg("x"),
           "x [n, cols] -> [n, outputs]; outputs is the weight's number of rows.")
      .def("linears", &linears, py::arg("weights"), py::arg("outputs"), py::arg("x"),
           py::arg("precise") = std::vector<std::uint32_t>{},
           "linear() with several weights on one input: a list of arrays. Rows named in `precise` are "
           "rounded to 16 bits where others are to 8.")
      .def("embed", &embed, py::arg("table"), py::arg("width"), py::arg("tokens"), "Rows of a table.")
      .def("rms_norm", &rms_norm, py::arg("x"), py::arg("gain"), py::arg("epsilon"), py::arg("parts") = 0)
      .def("rope", &rope, py::arg("x"), py::arg("positions"), py::kw_only(), py::arg("heads"),
           py::arg("rope"), "x [n, heads * head_dim] -> the same, row i turned by positions[i].")
      .def("silu_mul", &silu_mul, py::arg("gate"), py::arg("up"))
      .def("gelu_mul", &gelu_mul, py::arg("gate"), py::arg("up"))
      .def("softcap", &softcap, py::arg("x"), py::arg("cap"))
      .def("multiply", &multiply, py::arg("a"), py::arg("by"))
      .def("add", &add, py::arg("a"), py::arg("x"))
      .def("gather", &gather, py::arg("x"), py::arg("rows"));
}

}  // namespace

void bind_backend(py::module_& m) {
  bind_types(m);
  py::class_<Backend> c(m, "Backend",
                        "The machine that computes: kernels, threads, weights and pool memory. Calls from "
                        "several threads wait for each other.");
  c.def(py::init([](std::uint32_t threads, const std::string& isa) {
          return std::make_unique<Backend>(BackendConfig{threads, isa});
        }),
        py::arg("threads") = 0, py::arg("isa") = "auto",
        "threads: 0 means the cores this process may use; isa: \"auto\" or one of available_isas().")
      .def_static("name", &Backend::name)
      .def_static("available_isas", &Backend::available_isas, "Instruction-set tiers, best last.")
      .def_property_readonly("isa", &Backend::isa, "Tier in use.")
      .def_property_readonly("threads", &Backend::threads)
      .def("set_threads", &Backend::set_threads, py::arg("threads"), "Results do not change.")
      .def_property_readonly("weight_bytes", &Backend::weight_bytes);
  bind_operations(c);
  bind_pools(c);
  bind_states(c);
  bind_measurement(c);
}

}  // namespace pykv::bindings
