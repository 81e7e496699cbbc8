// Floor 6, private. NumPy arrays as rows of a backend's buffers, made for one call.
#pragma once

#include <pybind11/numpy.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string>

#include "pykv/backend.h"
#include "pykv/errors.h"

namespace pykv::bindings {

using Floats = pybind11::array_t<float, pybind11::array::c_style | pybind11::array::forcecast>;
template <class T>
using List = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

inline std::uint32_t narrow(const char* what, pybind11::ssize_t n) {
  if (n < 0 || static_cast<std::uint64_t>(n) > std::numeric_limits<std::uint32_t>::max())
    throw InvalidArgument("[Backend] " + std::string(what) + " of length " + std::to_string(n) +
                          "; the limit is 2^32 - 1");
  return static_cast<std::uint32_t>(n);
}

template <class T>
std::span<const T> view(const List<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

// A buffer for one call, filled from a two-dimensional array or empty.
class Scratch {
 public:
  Scratch(Backend& backend, pybind11::ssize_t rows, pybind11::ssize_t width)
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
    Floats out({static_cast<pybind11::ssize_t>(rows_.count), static_cast<pybind11::ssize_t>(rows_.width)});
    backend_.download(rows_, {out.mutable_data(), static_cast<std::size_t>(out.size())});
    return out;
  }

 private:
  static pybind11::ssize_t dimension(const char* name, const Floats& values, int axis) {
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
  const pybind11::gil_scoped_release release;
  call();
}

DType parse_dtype(const std::string& name);  // throws InvalidArgument naming the types

void bind_pools(pybind11::class_<Backend>& c);   // pool memory, cache rows, attention
void bind_states(pybind11::class_<Backend>& c);  // recurrent layers

}  // namespace pykv::bindings
