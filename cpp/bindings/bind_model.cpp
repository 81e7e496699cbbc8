// gguf.h and sampling.h. Arrays are returned as NumPy arrays or lists of str; text that
// is not UTF-8 is an error that names its place, never a broken str.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>

#include "bindings.h"
#include "pykv/errors.h"
#include "pykv/gguf.h"
#include "pykv/sampling.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

using Logits = py::array_t<float, py::array::c_style | py::array::forcecast>;

py::str to_str(std::string_view text, const std::string& place) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "strict");
  if (made == nullptr) {
    PyErr_Clear();
    throw CorruptModel("[GgufFile] " + place + " is not valid UTF-8; convert the model again");
  }
  return py::reinterpret_steal<py::str>(made);
}

py::object scalar(const GgufFile& file, const std::string& key) {
  const std::optional<GgufFile::Value> value = file.scalar(key);
  if (!value) return py::none();
  if (const auto* text = std::get_if<std::string>(&*value))
    return to_str(*text, "metadata key '" + key + "'");
  return py::cast(*value);
}

py::list string_array(const GgufFile& file, const std::string& key) {
  const std::vector<std::string_view> values = file.string_array(key);
  py::list out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    out[i] = to_str(values[i], "element " + std::to_string(i) + " of metadata key '" + key + "'");
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
      "Read-only view of a GGUF file (version 2 or 3). Raises CorruptModel, UnsupportedModel, "
      "or Error if it cannot be opened.")
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
      .def("drop_pages", &GgufFile::drop_pages, "Lets the system reuse the mapped memory.");
}

void bind_sampling(py::module_& m) {
  py::class_<Sampler>(
      m, "Sampler",
      "Chooses tokens. Order of filters: top_k, top_p, min_p, temperature, draw. temperature 0 is "
      "greedy; top_k 0, top_p 1 and min_p 0 are off. Raises InvalidArgument.")
      .def(py::init([](float temperature, std::uint32_t top_k, float top_p, float min_p, std::uint64_t seed) {
             return Sampler({temperature, top_k, top_p, min_p, seed});
           }),
           py::kw_only(), py::arg("temperature") = SamplingParams{}.temperature,
           py::arg("top_k") = SamplingParams{}.top_k, py::arg("top_p") = SamplingParams{}.top_p,
           py::arg("min_p") = SamplingParams{}.min_p, py::arg("seed") = SamplingParams{}.seed)
      .def(
          "sample", [](Sampler& s, const Logits& logits) { return s.sample(logits_span(logits)); },
          py::arg("logits"), "Token id drawn from float32 logits [vocab].");
  m.def(
      "top_logprobs",
      [](const Logits& logits, std::uint32_t count) {
        std::vector<std::pair<Token, float>> out;
        for (const TokenLogprob& item : top_logprobs(logits_span(logits), count))
          out.emplace_back(item.token, item.logprob);
        return out;
      },
      py::arg("logits"), py::arg("count"),
      "The `count` most likely (token, natural log of its probability) of float32 logits [vocab].");
}

}  // namespace

void bind_model(py::module_& m) {
  bind_gguf(m);
  bind_sampling(m);
}

}  // namespace pykv::bindings
