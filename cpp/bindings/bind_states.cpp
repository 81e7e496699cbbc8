// backend.h: states of recurrent layers.
#include <pybind11/stl.h>

#include <tuple>

#include "backend_arrays.h"
#include "bindings.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

using StretchTuple = std::tuple<std::uint32_t, std::uint32_t, std::optional<std::uint32_t>, std::uint32_t>;

std::vector<StateStretch> to_stretches(const std::vector<StretchTuple>& tuples) {
  std::vector<StateStretch> out;
  for (const auto& [first_row, rows, read, write] : tuples)
    out.push_back({first_row, rows, read ? std::optional(StateSlot{*read}) : std::nullopt, StateSlot{write}});
  return out;
}

std::optional<WeightId> to_weight(std::optional<std::uint32_t> handle) {
  return handle ? std::optional(WeightId{*handle}) : std::nullopt;
}

Floats read_state(const Backend& backend, std::uint32_t states, std::uint32_t slot, std::uint32_t offset,
                  std::uint32_t count) {
  Floats out(static_cast<py::ssize_t>(count));
  backend.read_state(StatesId{states}, StateSlot{slot}, offset, {out.mutable_data(), count});
  return out;
}

}  // namespace

void bind_states(py::class_<Backend>& c) {
  c.def(
       "create_states",
       [](Backend& b, std::uint64_t slot_bytes, std::uint32_t slots) {
         return b.create_states(slot_bytes, slots).value;
       },
       py::arg("slot_bytes"), py::arg("slots"), "Reserves slots for states of recurrent layers.")
      .def(
          "destroy_states", [](Backend& b, std::uint32_t states) { b.destroy_states(StatesId{states}); },
          py::arg("states"))
      .def(
          "commit_slot",
          [](Backend& b, std::uint32_t states, std::uint32_t slot) {
            return b.commit_slot(StatesId{states}, StateSlot{slot});
          },
          py::arg("states"), py::arg("slot"), "False: the system has no memory.")
      .def(
          "release_slot",
          [](Backend& b, std::uint32_t states, std::uint32_t slot) {
            b.release_slot(StatesId{states}, StateSlot{slot});
          },
          py::arg("states"), py::arg("slot"))
      .def("read_state", &read_state, py::arg("states"), py::arg("slot"), py::arg("offset"), py::arg("count"),
           "Elements [offset, offset + count) of a slot, float32.")
      .def(
          "write_state",
          [](Backend& b, std::uint32_t states, std::uint32_t slot, std::uint32_t offset,
             const Floats& values) {
            b.write_state(StatesId{states}, StateSlot{slot}, offset, view(values));
          },
          py::arg("states"), py::arg("slot"), py::arg("offset"), py::arg("values"))
      .def(
          "causal_conv",
          [](Backend& b, std::uint32_t states, std::uint32_t offset,
             const std::vector<StretchTuple>& stretches, std::uint32_t taps,
             std::optional<std::uint32_t> bias, bool silu, const Floats& x) {
            const std::vector<StateStretch> list = to_stretches(stretches);
            const Scratch in(b, "x", x);
            const Scratch out(b, x.shape(0), x.shape(1));
            without_gil([&] {
              b.causal_conv({StatesId{states}, offset, list}, {WeightId{taps}, to_weight(bias), silu},
                            in.rows(), out.rows());
            });
            return out.values();
          },
          py::arg("states"), py::arg("offset"), py::arg("stretches"), py::arg("taps"), py::arg("bias"),
          py::arg("silu"), py::arg("x"),
          "x [n, channels] -> the same shape. A stretch is (first row, rows, slot to read or None, slot to "
          "write).")
      .def(
          "scan",
          [](Backend& b, std::uint32_t states, std::uint32_t offset,
             const std::vector<StretchTuple>& stretches, const std::array<std::uint32_t, 4>& sizes,
             const std::array<std::uint32_t, 3>& weights, const Floats& x_b_c, const Floats& dt) {
            const std::vector<StateStretch> list = to_stretches(stretches);
            const ScanParams params{sizes[0],
                                    sizes[1],
                                    sizes[2],
                                    sizes[3],
                                    WeightId{weights[0]},
                                    WeightId{weights[1]},
                                    WeightId{weights[2]}};
            const Scratch in(b, "x_b_c", x_b_c);
            const Scratch steps(b, "dt", dt);
            const Scratch out(b, x_b_c.shape(0), static_cast<py::ssize_t>(sizes[0]) * sizes[1]);
            without_gil([&] {
              b.scan({StatesId{states}, offset, list}, params, in.rows(), steps.rows(), out.rows());
            });
            return out.values();
          },
          py::arg("states"), py::arg("offset"), py::arg("stretches"), py::arg("sizes"), py::arg("weights"),
          py::arg("x_b_c"), py::arg("dt"),
          "sizes: heads, head_dim, groups, state_size; weights: a, d, dt_bias, each [1, heads].");
}

}  // namespace pykv::bindings
