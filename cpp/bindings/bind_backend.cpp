// dtype.h, quant.h, backend.h. The operations of Backend take and give
// NumPy arrays here, through buffers made for the call: for tests and experiments. The
// model and the cache use the C++ interface, where rows stay on the backend.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>

#include "bindings.h"
#include "pykv/backend.h"
#include "pykv/errors.h"
#include "pykv/layer_table.h"
#include "pykv/precision.h"
#include "pykv/quant.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Bytes = py::array_t<std::uint8_t, py::array::c_style>;
template <class T>
using List = py::array_t<T, py::array::c_style | py::array::forcecast>;

DType parse_dtype(const std::string& name) {
  std::string known;
  for (const DTypeTraits& t : all_dtypes()) {
    if (name == t.name) return t.type;
    known += known.empty() ? t.name : std::string(", ") + t.name;
  }
  throw InvalidArgument("[DType] type \"" + name.substr(0, 40) + "\" is unknown; use one of " + known);
}

std::uint32_t narrow(const char* what, py::ssize_t n) {
  if (n < 0 || static_cast<std::uint64_t>(n) > std::numeric_limits<std::uint32_t>::max())
    throw InvalidArgument("[Backend] " + std::string(what) + " of length " + std::to_string(n) +
                          "; the limit is 2^32 - 1");
  return static_cast<std::uint32_t>(n);
}

template <class T>
std::span<const T> view(const List<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

std::span<const std::byte> view_bytes(const Bytes& array) {
  return {reinterpret_cast<const std::byte*>(array.data()), static_cast<std::size_t>(array.size())};
}

// A buffer for one call, filled from a two-dimensional array or empty.
class Scratch {
 public:
  Scratch(Backend& backend, py::ssize_t rows, py::ssize_t width)
      : backend_(backend),
        rows_{backend.create_buffer(std::max(1U, narrow("rows", rows)), narrow("width", width)), 0,
              narrow("rows", rows), narrow("width", width)} {}
  Scratch(Backend& backend, const char* name, const Floats& values)
      : Scratch(backend, dimension(name, values, 0), dimension(name, values, 1)) {
    backend_.upload(rows_, {values.data(), static_cast<std::size_t>(values.size())});
  }
  ~Scratch() { backend_.destroy_buffer(rows_.buffer); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Rows rows() const { return rows_; }
  Floats values() const {
    Floats out({static_cast<py::ssize_t>(rows_.count), static_cast<py::ssize_t>(rows_.width)});
    backend_.download(rows_, {out.mutable_data(), static_cast<std::size_t>(out.size())});
    return out;
  }

 private:
  static py::ssize_t dimension(const char* name, const Floats& values, int axis) {
    if (values.ndim() != 2)
      throw InvalidArgument("[Backend] " + std::string(name) + " has " + std::to_string(values.ndim()) +
                            " dimensions, needed are 2");
    return values.shape(axis);
  }
  Backend& backend_;
  Rows rows_;
};

template <class Call>
void without_gil(Call&& call) {
  const py::gil_scoped_release release;
  call();
}

Floats linear(Backend& backend, std::uint32_t weight, std::uint32_t outputs, const Floats& x) {
  const Scratch in(backend, "x", x);
  const Scratch out(backend, x.shape(0), outputs);
  without_gil([&] { backend.linear(WeightId{weight}, in.rows(), out.rows()); });
  return out.values();
}

std::vector<Floats> linears(Backend& backend, const std::vector<std::uint32_t>& weights,
                            const std::vector<std::uint32_t>& outputs, const Floats& x) {
  const Scratch in(backend, "x", x);
  std::vector<WeightId> ids;
  for (const std::uint32_t weight : weights) ids.emplace_back(weight);
  std::vector<std::unique_ptr<Scratch>> outs;
  std::vector<Rows> rows;
  for (const std::uint32_t width : outputs) {
    outs.push_back(std::make_unique<Scratch>(backend, x.shape(0), width));
    rows.push_back(outs.back()->rows());
  }
  without_gil([&] { backend.linear(ids, in.rows(), rows); });
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

Floats rms_norm(Backend& backend, const Floats& x, std::uint32_t gain, float epsilon) {
  const Scratch in(backend, "x", x);
  const Scratch out(backend, x.shape(0), x.shape(1));
  without_gil([&] { backend.rms_norm(in.rows(), WeightId{gain}, epsilon, out.rows()); });
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

void write_kv(Backend& backend, std::uint32_t pool, std::uint32_t layer, const Floats& k, const Floats& v,
              const List<CellIndex>& cells) {
  const Scratch keys(backend, "k", k);
  const Scratch values(backend, "v", v);
  without_gil([&] { backend.write_kv(PoolId{pool}, layer, keys.rows(), values.rows(), view(cells)); });
}

py::tuple read_kv(const Backend& backend, std::uint32_t pool, std::uint32_t layer,
                  const List<CellIndex>& cells, std::pair<std::uint32_t, std::uint32_t> widths) {
  Floats k({cells.size(), static_cast<py::ssize_t>(widths.first)});
  Floats v({cells.size(), static_cast<py::ssize_t>(widths.second)});
  backend.read_kv(PoolId{pool}, layer, view(cells), {k.mutable_data(), static_cast<std::size_t>(k.size())},
                  {v.mutable_data(), static_cast<std::size_t>(v.size())});
  return py::make_tuple(k, v);
}

using SegmentTuple = std::tuple<Pos, CellIndex, std::uint32_t>;
using GroupTuple = std::tuple<std::uint32_t, std::uint32_t, Pos, std::uint32_t, std::uint32_t>;

struct AttendArguments {
  std::uint32_t pool, layer;
  std::uint32_t out_width;
  AttentionParams params;
};

Floats attend(Backend& backend, const Floats& q, const std::vector<SegmentTuple>& segments,
              const std::vector<GroupTuple>& groups, const AttendArguments& arguments) {
  AttentionBatch batch;
  for (const auto& [first, cell, length] : segments)
    batch.segments.push_back({first, cell, length, 0, static_cast<std::uint32_t>(first)});
  for (const auto& [first_row, rows, position, first_segment, count] : groups)
    batch.groups.push_back(
        {first_row, rows, position, first_segment, count, static_cast<std::uint32_t>(position)});
  const Scratch in(backend, "q", q);
  const Scratch out(backend, q.shape(0), arguments.out_width);
  without_gil([&] {
    backend.attend(PoolId{arguments.pool}, arguments.layer, in.rows(), out.rows(), batch, arguments.params);
  });
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
           "linear() with several weights on one input: a list of arrays.")
      .def("embed", &embed, py::arg("table"), py::arg("width"), py::arg("tokens"), "Rows of a table.")
      .def("rms_norm", &rms_norm, py::arg("x"), py::arg("gain"), py::arg("epsilon"))
      .def("rope", &rope, py::arg("x"), py::arg("positions"), py::kw_only(), py::arg("heads"),
           py::arg("rope"), "x [n, heads * head_dim] -> the same, row i turned by positions[i].")
      .def("silu_mul", &silu_mul, py::arg("gate"), py::arg("up"))
      .def("add", &add, py::arg("a"), py::arg("x"))
      .def("gather", &gather, py::arg("x"), py::arg("rows"));
}

void bind_pools(py::class_<Backend>& c) {
  c.def(
       "create_pool",
       [](Backend& backend, const LayerTable& layers, const std::string& type_k, const std::string& type_v,
          std::uint32_t blocks) {
         validate(layers);
         return backend.create_pool(BlockLayout(layers, 0, parse_dtype(type_k), parse_dtype(type_v)), blocks)
             .value;
       },
       py::arg("layers"), py::arg("type_k"), py::arg("type_v"), py::arg("blocks"),
       "Reserves address space for blocks of 64 cells; returns the pool's handle.")
      .def(
          "destroy_pool", [](Backend& backend, std::uint32_t pool) { backend.destroy_pool(PoolId{pool}); },
          py::arg("pool"))
      .def(
          "commit_blocks",
          [](Backend& backend, std::uint32_t pool, const List<BlockIndex>& blocks) {
            backend.commit_blocks(PoolId{pool}, view(blocks));
          },
          py::arg("pool"), py::arg("blocks"))
      .def(
          "release_blocks",
          [](Backend& backend, std::uint32_t pool, const List<BlockIndex>& blocks) {
            backend.release_blocks(PoolId{pool}, view(blocks));
          },
          py::arg("pool"), py::arg("blocks"))
      .def("write_kv", &write_kv, py::arg("pool"), py::arg("layer"), py::arg("k"), py::arg("v"),
           py::arg("cells"))
      .def("read_kv", &read_kv, py::arg("pool"), py::arg("layer"), py::arg("cells"), py::arg("widths"),
           "Stored values, decoded: k [n, widths[0]], v [n, widths[1]].")
      .def(
          "attend",
          [](Backend& backend, std::uint32_t pool, std::uint32_t layer, const Floats& q,
             const std::vector<SegmentTuple>& segments, const std::vector<GroupTuple>& groups,
             std::uint32_t heads, float scale, std::uint32_t out_width) {
            return attend(backend, q, segments, groups, {pool, layer, out_width, {heads, scale}});
          },
          py::arg("pool"), py::arg("layer"), py::arg("q"), py::kw_only(), py::arg("segments"),
          py::arg("groups"), py::arg("heads"), py::arg("scale"), py::arg("out_width"),
          "segments: (first position, cell, length); groups: (first row, rows, first position, first "
          "segment, segments). Returns [n, out_width = heads * v_dim].");
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
  bind_measurement(c);
}

}  // namespace pykv::bindings
