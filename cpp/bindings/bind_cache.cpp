// cache.h and policy.h's watermarks. Arrays come and go as float32 rows, flat over heads;
// pykv/cache.py gives them their shapes. The GIL is released wherever the cache's lock is
// taken, so a step that runs in another thread never waits for Python.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <tuple>
#include <utility>

#include "arguments.h"
#include "bindings.h"
#include "cache_bindings.h"
#include "pykv/cache.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

using FloatRows = py::array_t<float, py::array::c_style>;
using ByteRows = py::array_t<std::uint8_t, py::array::c_style>;
using Unlocked = py::gil_scoped_release;

SeqId seq_id(const PyInt& seq, const char* method) {
  return {to_int<std::uint64_t>(seq, std::string("[Cache.") + method + "] sequence")};
}

NamespaceId name_space(const PyInt& value, const char* method) {
  return {to_int<std::uint32_t>(value, std::string("[Cache.") + method + "] namespace")};
}

EvictReason evict_reason(const std::string& name) {
  if (name == "request") return EvictReason::request;
  if (name == "demand") return EvictReason::demand;
  if (name == "watermark") return EvictReason::watermark;
  throw InvalidArgument("[Cache.evict] reason is \"" + name + "\", must be request, demand or watermark");
}

// A hash that sends every edge to one bucket: results must not depend on the hash.
std::uint64_t constant_edge_hash(std::uint32_t, std::uint32_t, Token) { return 0; }

EdgeHash edge_hash(const std::string& name) {
  if (name == "default") return default_edge_hash;
  if (name == "constant") return constant_edge_hash;
  throw InvalidArgument("[Cache] edge_hash is \"" + name + "\", must be default, or constant for tests");
}

std::unique_ptr<Cache> make_cache(const LayerTable& layers, const std::vector<RopeParams>& ropes,
                                  Backend& backend, const PyInt& cells, const std::string& type_k,
                                  const std::string& type_v, bool hadamard, const PyInt& pool_bytes,
                                  std::pair<double, double> watermarks, const PyInt& compact_bytes,
                                  const std::string& hash, const PyInt& max_sequences,
                                  const PyInt& step_tokens, const PyInt& window_cells,
                                  const std::optional<PyInt>& resume_bytes, const PyInt& resume_spacing,
                                  const std::vector<std::pair<std::uint32_t, std::uint32_t>>& recurrent) {
  CacheConfig config;
  config.layers = layers;
  config.ropes = ropes;
  for (const auto& [conv, scan] : recurrent) config.recurrent.push_back({conv, scan});
  config.type_k = parse_kv_type(type_k);
  config.type_v = parse_kv_type(type_v);
  config.hadamard = hadamard;
  config.cells = to_int<std::uint64_t>(cells, "[Cache] cells", 1);
  config.pool_bytes = to_int<std::uint64_t>(pool_bytes, "[Cache] pool_bytes");
  config.watermarks = {watermarks.first, watermarks.second};
  config.compact_bytes = to_int<std::uint64_t>(compact_bytes, "[Cache] compact_bytes");
  config.edge_hash = edge_hash(hash);
  config.max_sequences = to_int<std::uint32_t>(max_sequences, "[Cache] max_sequences", 1);
  config.step_tokens = to_int<std::uint32_t>(step_tokens, "[Cache] step_tokens", 1);
  config.window_cells = to_int<std::uint64_t>(window_cells, "[Cache] window_cells");
  if (resume_bytes) config.resume_bytes = to_int<std::uint64_t>(*resume_bytes, "[Cache] resume_bytes");
  config.resume_spacing =
      to_int<std::uint32_t>(resume_spacing, "[Cache] resume_spacing", 0, static_cast<std::uint32_t>(kMaxPos));
  const Unlocked unlocked;
  return std::make_unique<Cache>(std::move(config), backend);
}

py::dict plan_memory(const LayerTable& layers, const PyInt& cells, const std::string& type_k,
                     const std::string& type_v, const PyInt& max_sequences, const PyInt& step_tokens,
                     const std::optional<PyInt>& resume_bytes,
                     const std::vector<std::pair<std::uint32_t, std::uint32_t>>& recurrent) {
  CacheConfig config;
  config.layers = layers;
  for (const auto& [conv, scan] : recurrent) config.recurrent.push_back({conv, scan});
  config.type_k = parse_kv_type(type_k);
  config.type_v = parse_kv_type(type_v);
  config.cells = to_int<std::uint64_t>(cells, "[memory_plan] cells", 1);
  config.max_sequences = to_int<std::uint32_t>(max_sequences, "[memory_plan] max_sequences", 1);
  config.step_tokens = to_int<std::uint32_t>(step_tokens, "[memory_plan] step_tokens", 1);
  if (resume_bytes) config.resume_bytes = to_int<std::uint64_t>(*resume_bytes, "[memory_plan] resume_bytes");
  return to_dict(memory_plan(config));
}

std::tuple<std::uint64_t, std::uint32_t, std::uint32_t, std::uint32_t> open(
    Cache& cache, const py::object& given, const PyInt& ns, const std::optional<PyInt>& limit) {
  const std::vector<Token> tokens = to_tokens(given, "[Cache.open] tokens");
  const NamespaceId space = name_space(ns, "open");
  std::optional<std::uint32_t> max_reuse;
  if (limit) max_reuse = to_int<std::uint32_t>(*limit, "[Cache.open] max_reuse");
  const Unlocked unlocked;
  const Cache::Opened opened = cache.open(space, tokens, max_reuse);
  return {opened.seq.value, opened.reused, opened.pending, opened.no_resume_point};
}

std::pair<FloatRows, FloatRows> read_rows(const Cache& cache, const PyInt& seq, const PyInt& layer,
                                          const py::object& span) {
  const SeqId id = seq_id(seq, "read_rows");
  const auto index = to_int<std::uint32_t>(layer, "[Cache.read_rows] layer");
  const std::optional<Span> wanted = to_span(span, "[Cache.read_rows] ");
  Cache::RowValues values;
  {
    const Unlocked unlocked;
    values = cache.read_rows(id, index, wanted);
  }
  const LayerSpec& spec = cache.config().layers[index];
  const auto as_array = [&](const std::vector<float>& flat, std::uint32_t dim) {
    return FloatRows({py::ssize_t{values.rows}, py::ssize_t{spec.kv_heads}, py::ssize_t{dim}}, flat.data());
  };
  return {as_array(values.k, spec.k_dim), as_array(values.v, spec.v_dim)};
}

std::pair<ByteRows, ByteRows> export_rows(const Cache& cache, const PyInt& seq, const PyInt& layer,
                                          const py::object& span) {
  const SeqId id = seq_id(seq, "export_rows");
  const auto index = to_int<std::uint32_t>(layer, "[Cache.export_rows] layer");
  const std::optional<Span> wanted = to_span(span, "[Cache.export_rows] ");
  Cache::RowBytes bytes;
  {
    const Unlocked unlocked;
    bytes = cache.export_rows(id, index, wanted);
  }
  const auto as_array = [&](const std::vector<std::byte>& flat, DType type, std::uint32_t dim) {
    const std::size_t width = row_bytes(type, std::size_t{cache.config().layers[index].kv_heads} * dim);
    return ByteRows({py::ssize_t{bytes.rows}, static_cast<py::ssize_t>(width)},
                    reinterpret_cast<const std::uint8_t*>(flat.data()));
  };
  const CacheConfig& config = cache.config();
  const LayerSpec& spec = config.layers[index];
  return {as_array(bytes.k, config.type_k, spec.k_dim),
          as_array(bytes.v, config.type_v, spec.v_view_of_k ? 0 : spec.v_dim)};
}

void bind_sequences(py::class_<Cache>& cache) {
  cache
      .def(
          "create",
          [](Cache& self, const PyInt& ns) {
            const NamespaceId space = name_space(ns, "create");
            const Unlocked unlocked;
            return self.create(space).value;
          },
          py::arg("namespace") = 0, "A new empty sequence.")
      .def("open", &open, py::arg("tokens"), py::arg("namespace") = 0, py::arg("max_reuse") = py::none(),
           "(sequence, reused, pending, no_resume_point): a sequence that starts from the longest cached "
           "prefix.")
      .def(
          "match",
          [](const Cache& self, const py::object& given, const PyInt& ns) {
            const std::vector<Token> tokens = to_tokens(given, "[Cache.match] tokens");
            const NamespaceId space = name_space(ns, "match");
            const Unlocked unlocked;
            return self.match(space, tokens);
          },
          py::arg("tokens"), py::arg("namespace") = 0, "How many of the tokens a sequence could start from.")
      .def(
          "stored",
          [](const Cache& self, const py::object& given, const PyInt& ns) {
            const std::vector<Token> tokens = to_tokens(given, "[Cache.stored] tokens");
            const NamespaceId space = name_space(ns, "stored");
            const Unlocked unlocked;
            return self.stored(space, tokens);
          },
          py::arg("tokens"), py::arg("namespace") = 0, "Length of the longest prefix in the tree.")
      .def(
          "fork",
          [](Cache& self, const PyInt& seq) {
            const SeqId id = seq_id(seq, "fork");
            const Unlocked unlocked;
            return self.fork(id).value;
          },
          py::arg("sequence"), "A copy that shares all cells; O(1).")
      .def(
          "clear",
          [](Cache& self, const PyInt& seq) {
            const SeqId id = seq_id(seq, "clear");
            const Unlocked unlocked;
            self.clear(id);
          },
          py::arg("sequence"), "Removes all tokens; the sequence stays.")
      .def(
          "erase",
          [](Cache& self, const PyInt& seq) {
            const SeqId id = seq_id(seq, "erase");
            const Unlocked unlocked;
            self.erase(id);
          },
          py::arg("sequence"), "Ends the sequence; its exact tokens stay matchable as idle.")
      .def(
          "keep",
          [](Cache& self, const std::vector<PyInt>& sequences) {
            std::vector<SeqId> ids;
            for (const PyInt& seq : sequences) ids.push_back(seq_id(seq, "keep"));
            const Unlocked unlocked;
            self.keep(ids);
          },
          py::arg("sequences"), "Ends every other sequence.")
      .def("erase_all", &Cache::erase_all, py::call_guard<Unlocked>(), "Ends every sequence.")
      .def("sequences", [](const Cache& self) {
        std::vector<std::uint64_t> ids;
        const Unlocked unlocked;
        for (const SeqId seq : self.sequences()) ids.push_back(seq.value);
        return ids;
      });
}

void bind_edits(py::class_<Cache>& cache) {
  cache
      .def(
          "remove",
          [](Cache& self, const PyInt& seq, const py::object& span) {
            const SeqId id = seq_id(seq, "remove");
            const std::optional<Span> gone = to_span(span, "[Cache.remove] ");
            const Unlocked unlocked;
            self.remove(id, gone);
          },
          py::arg("sequence"), py::arg("span"), "Removes the positions in a span, or all with None.")
      .def(
          "rewind",
          [](Cache& self, const PyInt& seq, const PyInt& position) {
            const SeqId id = seq_id(seq, "rewind");
            const Pos to = to_int<Pos>(position, "[Cache.rewind] position");
            const Unlocked unlocked;
            return self.rewind(id, to);
          },
          py::arg("sequence"), py::arg("position"),
          "Takes tokens off the end until the sequence continues exactly at or before a position.")
      .def(
          "next_point",
          [](const Cache& self, const PyInt& seq) {
            const SeqId id = seq_id(seq, "next_point");
            const Unlocked unlocked;
            return self.next_point(id);
          },
          py::arg("sequence"), "Where the next step should end at the latest, for a resume point.")
      .def(
          "mark_resume",
          [](Cache& self, const PyInt& seq) {
            const SeqId id = seq_id(seq, "mark_resume");
            const Unlocked unlocked;
            return self.mark_resume(id);
          },
          py::arg("sequence"), "Makes the end of the sequence a resume point.")
      .def(
          "copy",
          [](Cache& self, const PyInt& source, const py::object& span, const PyInt& to) {
            const SeqId from = seq_id(source, "copy"), target = seq_id(to, "copy");
            const std::optional<Span> wanted = to_span(span, "[Cache.copy] ");
            const Unlocked unlocked;
            self.copy(from, wanted, target);
          },
          py::arg("sequence"), py::arg("span"), py::arg("to"), "Shares a span with another sequence.")
      .def(
          "shift",
          [](Cache& self, const PyInt& seq, const py::object& span, const PyInt& delta) {
            const SeqId id = seq_id(seq, "shift");
            const std::optional<Span> moved = to_span(span, "[Cache.shift] ");
            const Pos distance = to_int<Pos>(delta, "[Cache.shift] delta", -kMaxPos);
            const Unlocked unlocked;
            self.shift(id, moved, distance);
          },
          py::arg("sequence"), py::arg("span"), py::arg("delta"), "Moves a span by delta positions.")
      .def(
          "divide",
          [](Cache& self, const PyInt& seq, const py::object& span, const PyInt& divisor) {
            const SeqId id = seq_id(seq, "divide");
            const std::optional<Span> moved = to_span(span, "[Cache.divide] ");
            const Pos by = to_int<Pos>(divisor, "[Cache.divide] divisor", 1);
            const Unlocked unlocked;
            self.divide(id, moved, by);
          },
          py::arg("sequence"), py::arg("span"), py::arg("divisor"), "Divides the positions of a span.");
}

void bind_views(py::class_<Cache>& cache) {
  cache
      .def(
          "bounds",
          [](const Cache& self, const PyInt& seq) {
            const SeqId id = seq_id(seq, "bounds");
            const Unlocked unlocked;
            const Span span = self.bounds(id);
            return std::pair(span.begin, span.end);
          },
          py::arg("sequence"))
      .def(
          "exact_upto",
          [](const Cache& self, const PyInt& seq) {
            const SeqId id = seq_id(seq, "exact_upto");
            const Unlocked unlocked;
            return self.exact_upto(id);
          },
          py::arg("sequence"))
      .def(
          "runs",
          [](const Cache& self, const PyInt& seq, const PyInt& pool) {
            const SeqId id = seq_id(seq, "runs");
            const auto of = to_int<std::uint32_t>(pool, "[Cache.runs] pool");
            std::vector<std::tuple<Pos, CellIndex, std::uint32_t, Pos>> out;
            const Unlocked unlocked;
            for (const Run& run : self.runs(id, of))
              out.emplace_back(run.first, run.cell, run.length, run.rotation);
            return out;
          },
          py::arg("sequence"), py::arg("pool") = 0, "List of (first, cell, length, rotation).")
      .def(
          "shared_cells",
          [](const Cache& self, const PyInt& seq) {
            const SeqId id = seq_id(seq, "shared_cells");
            const Unlocked unlocked;
            return self.shared_cells(id);
          },
          py::arg("sequence"))
      .def("prefix_nodes",
           [](const Cache& self) {
             std::vector<PrefixTree::NodeView> nodes;
             {
               const Unlocked unlocked;
               nodes = self.prefix_nodes();
             }
             return to_list(nodes);
           })
      .def("read_rows", &read_rows, py::arg("sequence"), py::arg("layer"), py::arg("span"),
           "(k, v) as attention sees them: float32 [n, kv_heads, k_dim] and [n, kv_heads, v_dim].")
      .def("export_rows", &export_rows, py::arg("sequence"), py::arg("layer"), py::arg("span") = py::none(),
           "(k, v) as stored, uint8 rows in GGUF's layout.")
      .def(
          "export_state",
          [](const Cache& self, const PyInt& seq, const PyInt& layer) {
            const SeqId id = seq_id(seq, "export_state");
            const auto index = to_int<std::uint32_t>(layer, "[Cache.export_state] layer");
            std::vector<float> state;
            {
              const Unlocked unlocked;
              state = self.export_state(id, index);
            }
            return FloatRows(static_cast<py::ssize_t>(state.size()), state.data());
          },
          py::arg("sequence"), py::arg("layer"), "A recurrent layer's state at the end, float32 [elements].")
      .def("stats",
           [](const Cache& self) {
             CacheStats stats;
             {
               const Unlocked unlocked;
               stats = self.stats();
             }
             return to_dict(stats);
           })
      .def("check_integrity", &Cache::check_integrity, py::call_guard<Unlocked>())
      .def_property_readonly("layers", [](const Cache& self) { return self.config().layers; })
      .def_property_readonly(
          "recurrent",
          [](const Cache& self) {
            std::vector<std::pair<std::uint32_t, std::uint32_t>> out;
            for (const RecurrentSpec& spec : self.config().recurrent)
              out.emplace_back(spec.conv_elements, spec.scan_elements);
            return out;
          },
          "Of each layer (elements of the convolution, of the scan) of a state; empty: none is recurrent.")
      .def_property_readonly("ropes", [](const Cache& self) { return self.config().ropes; })
      .def_property_readonly("type_k", [](const Cache& self) { return traits(self.config().type_k).name; })
      .def_property_readonly("type_v", [](const Cache& self) { return traits(self.config().type_v).name; })
      .def(
          "transforms",
          [](const Cache& self, const PyInt& layer) {
            const auto index =
                to_int<std::uint32_t>(layer, "[Cache.transforms] layer", 0, self.layout().layer_count() - 1);
            const BlockLayout::LayerPlace& place = self.layout(self.config().layers[index].pool).place(index);
            return std::pair(place.k.hadamard, place.v.hadamard);
          },
          py::arg("layer"), "How many elements of K and V are transformed together; 0: none.");
}

void bind_space(py::class_<Cache>& cache) {
  cache
      .def(
          "evict",
          [](Cache& self, const PyInt& cells, const std::string& reason) {
            const auto count = to_int<std::uint32_t>(cells, "[Cache.evict] cells");
            const EvictReason why = evict_reason(reason);
            const Unlocked unlocked;
            return self.evict(count, why);
          },
          py::arg("cells"), py::arg("reason") = "request", "Evicts idle cells; returns how many became free.")
      .def(
          "make_room",
          [](Cache& self, const PyInt& tokens) {
            const auto count = to_int<std::uint32_t>(tokens, "[Cache.make_room] tokens");
            const Unlocked unlocked;
            return self.make_room(count);
          },
          py::arg("tokens"), "Frees what a step lacks in each pool; returns how many cells became free.")
      .def(
          "reclaim",
          [](Cache& self, const PyInt& wanted) {
            const auto count = to_int<std::uint32_t>(wanted, "[Cache.reclaim] wanted");
            const Unlocked unlocked;
            return self.reclaim(count);
          },
          py::arg("wanted") = 0, "One reclaim tick; returns how many cells became free.")
      .def(
          "compact",
          [](Cache& self, const PyInt& bytes) {
            const auto budget = to_int<std::uint64_t>(bytes, "[Cache.compact] budget_bytes");
            const Unlocked unlocked;
            return self.compact(budget);
          },
          py::arg("budget_bytes"), "Moves cells so that runs become long and blocks free; returns how many.")
      .def(
          "set_watermarks",
          [](Cache& self, double low, double high) {
            const Unlocked unlocked;
            self.set_watermarks({low, high});
          },
          py::arg("low"), py::arg("high"))
      .def("watermarks",
           [](const Cache& self) {
             const Unlocked unlocked;
             const Watermarks marks = self.watermarks();
             return std::pair(marks.low, marks.high);
           })
      .def("reset_prefixes", &Cache::reset_prefixes, py::call_guard<Unlocked>(), "Forgets idle prefixes.");
}

}  // namespace

void bind_cache(py::module_& m) {
  py::class_<Cache> cache(m, "Cache", "One KV pool for all sessions; see pykv.Cache.");
  cache.def(
      py::init(&make_cache), py::kw_only(), py::arg("layers"), py::arg("ropes") = std::vector<RopeParams>{},
      py::arg("backend"), py::arg("cells"), py::arg("type_k") = "f16", py::arg("type_v") = "f16",
      py::arg("hadamard") = true, py::arg("pool_bytes") = 0, py::arg("watermarks") = std::pair(0.05, 0.10),
      py::arg("compact_bytes") = 4 << 20, py::arg("edge_hash") = "default",
      py::arg("max_sequences") = CacheConfig{}.max_sequences,
      py::arg("step_tokens") = CacheConfig{}.step_tokens, py::arg("window_cells") = 0,
      py::arg("resume_bytes") = py::none(), py::arg("resume_spacing") = CacheConfig{}.resume_spacing,
      py::arg("recurrent") = std::vector<std::pair<std::uint32_t, std::uint32_t>>{}, py::keep_alive<1, 4>());
  bind_sequences(cache);
  bind_edits(cache);
  bind_views(cache);
  bind_space(cache);
  bind_steps(m, cache);
  m.def("memory_plan", &plan_memory, py::kw_only(), py::arg("layers"), py::arg("cells"),
        py::arg("type_k") = "f16", py::arg("type_v") = "f16",
        py::arg("max_sequences") = CacheConfig{}.max_sequences,
        py::arg("step_tokens") = CacheConfig{}.step_tokens, py::arg("resume_bytes") = py::none(),
        py::arg("recurrent") = std::vector<std::pair<std::uint32_t, std::uint32_t>>{},
        "What Cache.stats() of a new cache says. Nothing is reserved.");
  m.def(
      "abandon", [](const py::object& object) { object.inc_ref(); },
      "Keeps `object` for ever. For a child process after os.fork(), where the worker threads that its "
      "destructor would join do not exist.");
}

}  // namespace pykv::bindings
