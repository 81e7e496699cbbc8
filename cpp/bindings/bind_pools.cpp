// backend.h: pool memory, cache rows, attention.
#include <pybind11/stl.h>

#include <tuple>

#include "backend_arrays.h"
#include "bindings.h"
#include "pykv/layer_table.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

void write_kv(Backend& backend, std::uint32_t pool, std::uint32_t layer, const Floats& k,
              const std::optional<Floats>& v, const List<CellIndex>& cells) {
  const Scratch keys(backend, "k", k);
  std::optional<Scratch> values;
  if (v) values.emplace(backend, "v", *v);
  without_gil([&] {
    backend.write_kv(PoolId{pool}, layer, keys.rows(), values ? values->rows() : Rows{}, view(cells));
  });
}

py::tuple read_kv(const Backend& backend, std::uint32_t pool, std::uint32_t layer,
                  const List<CellIndex>& cells, std::pair<std::uint32_t, std::uint32_t> widths) {
  Floats k({cells.size(), static_cast<py::ssize_t>(widths.first)});
  Floats v({cells.size(), static_cast<py::ssize_t>(widths.second)});
  backend.read_kv(PoolId{pool}, layer, view(cells), {k.mutable_data(), static_cast<std::size_t>(k.size())},
                  {v.mutable_data(), static_cast<std::size_t>(v.size())});
  return py::make_tuple(k, v);
}

void rewrite_k(Backend& backend, std::uint32_t pool, const List<CellIndex>& from, const List<CellIndex>& to,
               const List<Pos>& deltas, const std::vector<std::optional<RopeParams>>& ropes) {
  std::vector<const RopeParams*> of_layer;
  for (const auto& rope : ropes) of_layer.push_back(rope ? &*rope : nullptr);
  without_gil([&] { backend.rewrite_k(PoolId{pool}, view(from), view(to), view(deltas), of_layer); });
}

using SegmentTuple = std::tuple<Pos, CellIndex, std::uint32_t, Pos, std::uint32_t>;
using GroupTuple = std::tuple<std::uint32_t, std::uint32_t, Pos, std::uint32_t, std::uint32_t, std::uint32_t>;

// What attend() takes besides q, as C++ values.
struct Attending {
  AttentionBatch batch;
  std::vector<float> sinks, slopes;
  std::optional<RopeParams> rope;
  AttentionParams params;
};

Floats attend(Backend& backend, std::uint32_t pool, std::uint32_t layer, const Floats& q,
              std::uint32_t out_width, const Attending& given) {
  AttentionParams params = given.params;
  params.sinks = given.sinks;
  params.alibi_slopes = given.slopes;
  if (given.rope) params.rope = &*given.rope;
  const Scratch in(backend, "q", q);
  const Scratch out(backend, q.shape(0), out_width);
  without_gil([&] { backend.attend(PoolId{pool}, layer, in.rows(), out.rows(), given.batch, params); });
  return out.values();
}

using Bytes = py::array_t<std::uint8_t, py::array::c_style>;

std::span<std::byte> bytes_of(Bytes& array) {
  return {reinterpret_cast<std::byte*>(array.mutable_data()), static_cast<std::size_t>(array.size())};
}

py::tuple export_rows(const Backend& backend, std::uint32_t pool, std::uint32_t layer,
                      const List<CellIndex>& cells, std::pair<std::uint32_t, std::uint32_t> row_bytes) {
  Bytes k({cells.size(), static_cast<py::ssize_t>(row_bytes.first)});
  Bytes v({cells.size(), static_cast<py::ssize_t>(row_bytes.second)});
  const std::span<std::byte> to_k = bytes_of(k), to_v = bytes_of(v);
  const std::vector<Pos> deltas(static_cast<std::size_t>(cells.size()));
  without_gil([&] { backend.export_rows(PoolId{pool}, layer, view(cells), {deltas, {}}, to_k, to_v); });
  return py::make_tuple(k, v);
}

void import_rows(Backend& backend, std::uint32_t pool, std::uint32_t layer, const List<CellIndex>& cells,
                 const Bytes& k, const Bytes& v) {
  const auto from_k = std::as_bytes(std::span(k.data(), static_cast<std::size_t>(k.size())));
  const auto from_v = std::as_bytes(std::span(v.data(), static_cast<std::size_t>(v.size())));
  without_gil([&] { backend.import_rows(PoolId{pool}, layer, view(cells), from_k, from_v); });
}

AttentionBatch to_batch(const std::vector<SegmentTuple>& segments, const std::vector<GroupTuple>& groups) {
  AttentionBatch batch;
  for (const auto& [first, cell, length, rotation, slot] : segments)
    batch.segments.push_back({first, cell, length, rotation, slot});
  for (const auto& [first_row, rows, position, first_segment, count, slot] : groups)
    batch.groups.push_back({first_row, rows, position, first_segment, count, slot});
  return batch;
}

void bind_attention(py::class_<Backend>& c) {
  c.def(
      "attend",
      [](Backend& backend, std::uint32_t pool, std::uint32_t layer, const Floats& q,
         const std::vector<SegmentTuple>& segments, const std::vector<GroupTuple>& groups,
         std::uint32_t heads, float scale, std::uint32_t out_width, float softcap, std::vector<float> sinks,
         std::vector<float> alibi_slopes, const std::pair<std::string, std::uint32_t>& window,
         std::optional<RopeParams> rope, const std::string& precision) {
        AttentionParams params{.heads = heads, .scale = scale, .softcap = softcap};
        params.precision = parse_precision(precision);
        params.window = {parse_window_kind(window.first), window.second};
        return attend(
            backend, pool, layer, q, out_width,
            {to_batch(segments, groups), std::move(sinks), std::move(alibi_slopes), std::move(rope), params});
      },
      py::arg("pool"), py::arg("layer"), py::arg("q"), py::kw_only(), py::arg("segments"), py::arg("groups"),
      py::arg("heads"), py::arg("scale"), py::arg("out_width"), py::arg("softcap") = 0.0F,
      py::arg("sinks") = std::vector<float>{}, py::arg("alibi_slopes") = std::vector<float>{},
      py::arg("window") = std::pair<std::string, std::uint32_t>("none", 0), py::arg("rope") = py::none(),
      py::arg("precision") = "exact",
      "segments: (first position, cell, length, rotation, slot); groups: (first row, rows, first position, "
      "first segment, segments, first slot). sinks, alibi_slopes: one for each head. window: (kind, size). "
      "Returns [n, out_width = heads * v_dim].");
}

}  // namespace

void bind_pools(py::class_<Backend>& c) {
  c.def(
       "create_pool",
       [](Backend& backend, const LayerTable& layers, const std::string& type_k, const std::string& type_v,
          std::uint32_t blocks, bool hadamard) {
         validate(layers);
         const BlockLayout layout(layers, 0, parse_dtype(type_k), parse_dtype(type_v), hadamard);
         return backend.create_pool(layout, blocks).value;
       },
       py::arg("layers"), py::arg("type_k"), py::arg("type_v"), py::arg("blocks"), py::arg("hadamard") = true,
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
           py::arg("cells"), "v: None where V is a view of K.")
      .def("read_kv", &read_kv, py::arg("pool"), py::arg("layer"), py::arg("cells"), py::arg("widths"),
           "Stored values, decoded: k [n, widths[0]], v [n, widths[1]].")
      .def("export_rows", &export_rows, py::arg("pool"), py::arg("layer"), py::arg("cells"),
           py::arg("row_bytes"), "Rows as they are stored: k uint8 [n, row_bytes[0]], v [n, row_bytes[1]].")
      .def("import_rows", &import_rows, py::arg("pool"), py::arg("layer"), py::arg("cells"), py::arg("k"),
           py::arg("v"), "Puts such rows into cells.")
      .def("rewrite_k", &rewrite_k, py::arg("pool"), py::arg("source"), py::arg("target"), py::arg("deltas"),
           py::arg("ropes"),
           "K of source[i], moved by deltas[i] positions, into target[i]. ropes: one per layer, None to "
           "leave it.")
      .def(
          "copy_cells",
          [](Backend& backend, std::uint32_t pool, const List<CellIndex>& from, const List<CellIndex>& to) {
            without_gil([&] { backend.copy_cells(PoolId{pool}, view(from), view(to)); });
          },
          py::arg("pool"), py::arg("source"), py::arg("target"), "K and V of all layers, byte by byte.");
  bind_attention(c);
}

}  // namespace pykv::bindings
