// gguf.h, model.h and sampling.h. Arrays are returned as NumPy arrays or lists of str; text that
// is not UTF-8 is an error that names its place, never a broken str.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "arguments.h"
#include "bindings.h"
#include "pykv/errors.h"
#include "pykv/gguf.h"
#include "pykv/model.h"
#include "pykv/sampling.h"
#include "sampling_arguments.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

using Logits = py::array_t<float, py::array::c_style | py::array::forcecast>;

// `place` names where the text is from; it is called only where the text is not UTF-8, since a
// vocabulary has hundreds of thousands of them.
template <class Place>
py::str to_str(std::string_view text, const Place& place) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "strict");
  if (made == nullptr) {
    PyErr_Clear();
    throw CorruptModel("[GgufFile] " + place() + " is not valid UTF-8; convert the model again");
  }
  return py::reinterpret_steal<py::str>(made);
}

py::object scalar(const GgufFile& file, const std::string& key) {
  const std::optional<GgufFile::Value> value = file.scalar(key);
  if (!value) return py::none();
  if (const auto* text = std::get_if<std::string>(&*value))
    return to_str(*text, [&] { return "metadata key '" + key + "'"; });
  return py::cast(*value);
}

py::list string_array(const GgufFile& file, const std::string& key) {
  const std::vector<std::string_view> values = file.string_array(key);
  py::list out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    out[i] =
        to_str(values[i], [&] { return "element " + std::to_string(i) + " of metadata key '" + key + "'"; });
  return out;
}

template <class T>
py::array_t<T> to_array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::span<const float> logits_span(const Logits& logits) {
  if (logits.ndim() != 1)
    throw InvalidArgument("[Sampler] logits have " + std::to_string(logits.ndim()) +
                          " dimensions; pass one row of shape [vocab]");
  return {logits.data(), static_cast<std::size_t>(logits.size())};
}

void bind_gguf(py::module_& m) {
  py::class_<GgufFile::Tensor>(m, "GgufTensor", "Description of one tensor in a GGUF file.")
      .def_readonly("name", &GgufFile::Tensor::name)
      .def_property_readonly(
          "shape", [](const GgufFile::Tensor& t) { return py::tuple(py::cast(t.shape)); },
          "Extents in GGUF order: shape[0] is the row length.")
      .def_readonly("type_name", &GgufFile::Tensor::type_name, "E.g. \"Q4_1\"; \"type 77\" if unknown.")
      .def_property_readonly(
          "nbytes", [](const GgufFile::Tensor& t) { return t.bytes.size(); },
          "Bytes in the file, 0 for types this build cannot read.");

  py::class_<GgufFile>(
      m, "GgufFile",
      "Read-only view of a GGUF file (version 2 or 3), or of all parts of a split model if path is one "
      "of them. Raises CorruptModel, UnsupportedModel, or Error if a file cannot be opened.")
      .def(py::init([](const std::filesystem::path& path) { return GgufFile(path.string()); }),
           py::arg("path"))
      .def_property_readonly("path", [](const GgufFile& f) { return std::filesystem::path(f.path()); })
      .def_property_readonly("version", &GgufFile::version)
      .def_property_readonly("size", &GgufFile::size, "Bytes of the file.")
      .def("keys", &GgufFile::keys, "Metadata keys in file order.")
      .def("scalar", &scalar, py::arg("key"), "bool, int, float or str; None if absent or an array.")
      .def("array_size", &GgufFile::array_size, py::arg("key"), "Elements; None if absent or no array.")
      .def("string_array", &string_array, py::arg("key"),
           "list[str]; CorruptModel if absent or of another kind.")
      .def(
          "integer_array",
          [](const GgufFile& f, const std::string& key) { return to_array(f.integer_array(key)); },
          py::arg("key"), "int64 array; CorruptModel if absent or of another kind.")
      .def(
          "float_array",
          [](const GgufFile& f, const std::string& key) { return to_array(f.float_array(key)); },
          py::arg("key"), "float32 array; CorruptModel if absent or of another kind.")
      .def("tensors", &GgufFile::tensors, "Descriptions of all tensors in file order.")
      .def("drop_pages", py::overload_cast<>(&GgufFile::drop_pages, py::const_),
           "Lets the system reuse the mapped memory.");
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> recurrent_pairs(const ModelConfig& config) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> out;
  for (const RecurrentSpec& spec : recurrent_table(config))
    out.emplace_back(spec.conv_elements, spec.scan_elements);
  return out;
}

py::dict config_dict(const ModelConfig& config) {
  py::dict out;
  out["architecture"] = to_str(config.architecture, [] { return std::string("general.architecture"); });
  out["name"] = to_str(config.name, [] { return std::string("general.name"); });
  out["layers"] = config.layers;
  out["width"] = config.width;
  out["feed_forward"] = config.feed_forward;
  out["heads"] = config.heads;
  out["kv_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["vocab"] = config.vocab;
  out["trained_context"] = config.trained_context;
  out["context"] = config.context;
  out["precision"] = precision_name(config.precision);
  out["norm_epsilon"] = config.norm_epsilon;
  out["attention_scale"] = config.attention_scale;
  out["logit_scale"] = config.logit_scale;
  out["rope_dims"] = config.rope.dims;
  out["rope_base"] = config.rope.base;
  out["rope_frequencies"] = config.rope.frequencies;
  out["rope_magnitude"] = config.rope_magnitude;
  out["experts"] = config.experts;
  out["experts_used"] = config.experts_used;
  out["sinks"] = config.sinks;
  out["embedding_scale"] = config.embedding_scale;
  out["attention_softcap"] = config.attention_softcap;
  out["logit_softcap"] = config.logit_softcap;
  out["window"] = config.window;
  out["window_layers"] = config.window_layers;
  out["window_rope_base"] = config.window_rope.base;
  return out;
}

py::array_t<float> forward(Model& model, Step& step, const py::object& given, const py::object& rows) {
  const std::vector<Token> tokens = to_tokens(given, "[Model.forward] tokens");
  const std::vector<Token> ids = to_tokens(rows, "[Model.forward] logit_rows");
  const std::vector<std::uint32_t> logit_rows(ids.begin(), ids.end());
  if (logit_rows.size() > step.rows())
    throw InvalidArgument("[Model.forward] logits of " + std::to_string(logit_rows.size()) +
                          " rows are asked for, the step has " + std::to_string(step.rows()));
  py::array_t<float> logits({static_cast<py::ssize_t>(logit_rows.size()), py::ssize_t{model.config().vocab}});
  const std::span<float> out(logits.mutable_data(), static_cast<std::size_t>(logits.size()));
  {
    const py::gil_scoped_release unlocked;
    model.forward(step, tokens, logit_rows, out);
  }
  return logits;
}

void bind_decoder(py::module_& m) {
  m.def(
      "precisions",
      [] {
        return std::vector<std::string>{precision_name(Precision::exact), precision_name(Precision::fast),
                                        precision_name(Precision::fastest)};
      },
      "Names of the ways in which linear layers multiply (Model).");
  py::class_<Model>(
      m, "Model",
      "A decoder that runs on the cache. Raises UnsupportedModel (naming the architecture, feature or "
      "tensor type), CorruptModel, OutOfMemory.")
      .def(py::init([](const GgufFile& gguf, Backend& backend, const std::string& precision,
                       const PyInt& context, const std::optional<py::function>& progress) {
             ModelOptions options{parse_precision(precision),
                                  to_int<std::uint32_t>(context, "[Model] context")};
             if (progress)
               options.progress = [&](std::uint64_t done, std::uint64_t all) {
                 const py::gil_scoped_acquire locked;
                 (*progress)(done, all);
               };
             const py::gil_scoped_release unlocked;
             return std::make_unique<Model>(gguf, backend, options);
           }),
           py::arg("gguf"), py::arg("backend"), py::kw_only(), py::arg("precision") = "fast",
           py::arg("context") = 0, py::arg("progress") = py::none(), py::keep_alive<1, 3>(),
           "precision: \"fast\" multiplies with 8-bit activations where there are kernels for it, \"exact\" "
           "with float32 ones. context: tokens that no sequence will exceed; 0, or more than "
           "trained: the trained context. progress: called with the bytes of weights that are loaded and "
           "of all; what it raises ends the loading.")
      .def_property_readonly(
          "config", [](const Model& model) { return config_dict(model.config()); },
          "Numbers of the model, by the names of ModelConfig.")
      .def_property_readonly("weight_bytes", &Model::weight_bytes, "Resident bytes of all weights.")
      .def_property_readonly("parameters", &Model::parameters)
      .def_property_readonly(
          "layer_table", [](const Model& model) { return layer_table(model.config()); },
          "list[LayerSpec] for a Cache.")
      .def_property_readonly(
          "recurrent_table", [](const Model& model) { return recurrent_pairs(model.config()); },
          "list[tuple[int, int]], `recurrent` of a Cache: elements of each layer's convolution and scan.")
      .def_property_readonly(
          "ropes", [](const Model& model) { return ropes(model.config()); }, "list[RopeParams] for a Cache.")
      .def("forward", &forward, py::arg("step"), py::arg("tokens"), py::arg("logit_rows"),
           "Runs all layers for the rows of an open step. tokens: one id per row; logit_rows: ascending row "
           "numbers. Returns their logits, float32 [len(logit_rows), vocab]. Does not finish the step. A "
           "second "
           "thread waits for its turn. Raises InvalidArgument.");
  m.def(
      "read_model_config", [](const GgufFile& gguf) { return config_dict(read_model_config(gguf)); },
      py::arg("gguf"), "Model.config of a file, without its weights. Raises UnsupportedModel, CorruptModel.");
  m.def(
      "read_recurrent_table", [](const GgufFile& gguf) { return recurrent_pairs(read_model_config(gguf)); },
      py::arg("gguf"), "Model.recurrent_table of a file, without its weights. Raises as read_model_config.");
  m.def(
      "read_layer_table", [](const GgufFile& gguf) { return layer_table(read_model_config(gguf)); },
      py::arg("gguf"), "Model.layer_table of a file, without its weights. Raises as read_model_config.");
}

void bind_sampling(py::module_& m) {
  py::class_<Sampler>(
      m, "Sampler",
      "Chooses tokens. Order as in llama.cpp: logit_bias, penalties, top_n_sigma, top_k, typical_p, top_p, "
      "min_p, temperature, draw. temperature 0 is greedy; top_k 0, top_p 1, min_p 0, typical_p 1, "
      "top_n_sigma 0, penalties 0 and repeat_penalty 1 are off. Raises InvalidArgument.")
      .def(py::init([](float temperature, const PyInt& top_k, float top_p, float min_p, float typical_p,
                       float top_n_sigma, float repeat_penalty, const PyInt& repeat_last_n,
                       float presence_penalty, float frequency_penalty, const py::dict& logit_bias,
                       const PyInt& seed) {
             const SamplingArgs args{temperature,
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
             return Sampler(args.params("[Sampler] "));
           }),
           py::kw_only(), PYKV_SAMPLING_ARGUMENTS)
      .def(
          "sample",
          [](Sampler& s, const Logits& logits, const py::object& tokens,
             const std::optional<PyInt>& prompt_tokens) {
            if (tokens.is_none()) return s.sample(logits_span(logits));
            const std::vector<Token> seen = to_tokens(tokens, "[Sampler.sample] tokens");
            const auto all = static_cast<std::uint32_t>(seen.size());
            const std::uint32_t prompt =
                prompt_tokens
                    ? to_int<std::uint32_t>(*prompt_tokens, "[Sampler.sample] prompt_tokens", 0, all)
                    : all;
            return s.sample(logits_span(logits), {.tokens = seen, .prompt_tokens = prompt});
          },
          py::arg("logits"), py::arg("tokens") = py::none(), py::arg("prompt_tokens") = py::none(),
          "Token id drawn from float32 logits [vocab]. tokens: what came before, of which the first "
          "prompt_tokens (None: all) are the prompt; the draw's number is that of the others. Without "
          "tokens nothing was seen and each call is the next draw.");
  m.def(
      "top_logprobs",
      [](const Logits& logits, const PyInt& count) {
        const auto wanted = to_int<std::uint32_t>(count, "[top_logprobs] count");
        std::vector<std::pair<Token, float>> out;
        for (const TokenLogprob& item : top_logprobs(logits_span(logits), wanted))
          out.emplace_back(item.token, item.logprob);
        return out;
      },
      py::arg("logits"), py::arg("count"),
      "The `count` most likely (token, natural log of its probability) of float32 logits [vocab].");
}

}  // namespace

void bind_model(py::module_& m) {
  bind_gguf(m);
  bind_decoder(m);
  bind_sampling(m);
}

}  // namespace pykv::bindings
