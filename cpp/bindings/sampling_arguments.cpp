#include "sampling_arguments.h"

#include <limits>

#include "pykv/errors.h"

namespace py = pybind11;

namespace pykv::bindings {

std::uint64_t to_uint64(const PyInt& argument, const std::string& what) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(argument.value.ptr()));
  if (number) {
    const unsigned long long result = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() == nullptr) return result;
  }
  PyErr_Clear();
  if (!number) throw py::type_error(what + " must be an int, not " + Py_TYPE(argument.value.ptr())->tp_name);
  const bool short_enough = py::cast<std::uint64_t>(number.attr("bit_length")()) <= 128;
  throw InvalidArgument(what + " is " +
                        (short_enough ? py::str(number).cast<std::string>() : "of over 128 bits") +
                        ", must be 0 to 2**64 - 1");
}

SamplingParams SamplingArgs::params(const std::string& method) const {
  constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
  SamplingParams out;
  out.temperature = temperature;
  out.top_k = static_cast<std::uint32_t>(to_int64(top_k.value, method + "top_k", 0, 0xffffffff));
  out.top_p = top_p;
  out.min_p = min_p;
  out.typical_p = typical_p;
  out.top_n_sigma = top_n_sigma;
  out.repeat_penalty = repeat_penalty;
  out.repeat_last_n =
      static_cast<std::int32_t>(to_int64(repeat_last_n.value, method + "repeat_last_n", -1, kMaxInt));
  out.presence_penalty = presence_penalty;
  out.frequency_penalty = frequency_penalty;
  for (const auto& [token, bias] : logit_bias) {
    const auto id = static_cast<Token>(to_int64(token, method + "a token of logit_bias", 0, kMaxInt));
    if (!py::isinstance<py::float_>(bias) && !py::isinstance<py::int_>(bias))
      throw py::type_error(method + "logit_bias of token " + std::to_string(id) + " must be a float, not " +
                           Py_TYPE(bias.ptr())->tp_name);
    out.logit_bias[id] = py::cast<float>(bias);
  }
  out.seed = to_uint64(seed, method + "seed");
  return out;
}

}  // namespace pykv::bindings
