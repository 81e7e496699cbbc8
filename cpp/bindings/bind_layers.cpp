// layer_table.h, rope.h.
#include <pybind11/stl.h>

#include "bindings.h"
#include "pykv/errors.h"
#include "pykv/layer_table.h"
#include "pykv/rope.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

constexpr const char* kWindowKinds[] = {"none", "standard", "chunked", "symmetric"};

}  // namespace

const char* window_kind_name(WindowKind kind) { return kWindowKinds[static_cast<int>(kind)]; }

WindowKind parse_window_kind(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kWindowKinds); ++i)
    if (name == kWindowKinds[i]) return static_cast<WindowKind>(i);
  throw InvalidArgument("[WindowKind] kind is \"" + name.substr(0, 40) +
                        "\", must be none, standard or chunked");
}

namespace {

std::string describe(const LayerSpec& s) {
  return "LayerSpec(kv_heads=" + std::to_string(s.kv_heads) + ", k_dim=" + std::to_string(s.k_dim) +
         ", v_dim=" + std::to_string(s.v_dim) + ", pool=" + std::to_string(s.pool) +
         ", v_view_of_k=" + (s.v_view_of_k ? "True" : "False") +
         ", kv_from_layer=" + (s.kv_from_layer ? std::to_string(*s.kv_from_layer) : "None") +
         ", window_kind='" + kWindowKinds[static_cast<int>(s.window_kind)] +
         "', window_size=" + std::to_string(s.window_size) + ", rope_id=" + std::to_string(s.rope_id) +
         ", sinks=" + (s.sinks ? "True" : "False") + ")";
}

void bind_layer_spec(py::module_& m) {
  py::class_<LayerSpec>(m, "LayerSpec", "What the cache knows of one layer of a model (layer_table.h).")
      .def(
          py::init([](std::uint32_t kv_heads, std::uint32_t k_dim, std::optional<std::uint32_t> v_dim,
                      std::uint32_t pool, bool v_view_of_k, std::optional<std::uint32_t> kv_from_layer,
                      const std::string& kind, std::uint32_t window_size, std::uint32_t rope_id, bool sinks) {
            return LayerSpec{pool,
                             kv_heads,
                             k_dim,
                             v_dim.value_or(k_dim),
                             v_view_of_k,
                             kv_from_layer,
                             parse_window_kind(kind),
                             window_size,
                             rope_id,
                             sinks};
          }),
          py::kw_only(), py::arg("kv_heads"), py::arg("k_dim"), py::arg("v_dim") = py::none(),
          py::arg("pool") = 0, py::arg("v_view_of_k") = false, py::arg("kv_from_layer") = py::none(),
          py::arg("window_kind") = "none", py::arg("window_size") = 0, py::arg("rope_id") = 0,
          py::arg("sinks") = false, "v_dim defaults to k_dim; both are elements per head.")
      .def_readonly("pool", &LayerSpec::pool)
      .def_readonly("kv_heads", &LayerSpec::kv_heads)
      .def_readonly("k_dim", &LayerSpec::k_dim)
      .def_readonly("v_dim", &LayerSpec::v_dim)
      .def_readonly("v_view_of_k", &LayerSpec::v_view_of_k)
      .def_readonly("kv_from_layer", &LayerSpec::kv_from_layer)
      .def_property_readonly("window_kind",
                             [](const LayerSpec& s) { return kWindowKinds[static_cast<int>(s.window_kind)]; })
      .def_readonly("window_size", &LayerSpec::window_size)
      .def_readonly("rope_id", &LayerSpec::rope_id)
      .def_readonly("sinks", &LayerSpec::sinks)
      .def("__eq__", [](const LayerSpec& a, const LayerSpec& b) { return a == b; })
      .def("__repr__", &describe);
}

void bind_rope(py::module_& m) {
  py::class_<RopeParams>(m, "RopeParams", "Rotary position embedding of a head (rope.h).")
      .def(py::init<std::uint32_t, float, bool, std::vector<float>, std::uint32_t>(), py::kw_only(),
           py::arg("dims") = 0, py::arg("base") = RopeParams{}.base, py::arg("interleaved") = true,
           py::arg("frequencies") = std::vector<float>{}, py::arg("offset") = 0,
           "dims rotated elements from `offset` on (0: K does not depend on positions), by `frequencies` "
           "in radians per position, or base^(-2i / dims) where none are given.")
      .def_readonly("dims", &RopeParams::dims)
      .def_readonly("base", &RopeParams::base)
      .def_readonly("interleaved", &RopeParams::interleaved)
      .def_readonly("frequencies", &RopeParams::frequencies)
      .def_readonly("offset", &RopeParams::offset)
      .def("__eq__", [](const RopeParams& a, const RopeParams& b) { return a == b; });
}

}  // namespace

void bind_layers(py::module_& m) {
  bind_layer_spec(m);
  bind_rope(m);
  m.def("with_window_pools", &with_window_pools, py::arg("layers"),
        "The layers, those of each window in a pool of their own, which keeps what the window reaches.");
}

}  // namespace pykv::bindings
