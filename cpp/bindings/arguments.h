// Floor 6. Arguments from Python, checked by us: what is no integer (bool, float, None)
// is a TypeError, an integer out of range is pykv.InvalidArgument, and nothing wraps.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "pykv/errors.h"
#include "pykv/types.h"

namespace pykv::bindings {

// An argument that must be a Python int (or has __index__, as NumPy's integers have).
struct PyInt {
  pybind11::object value;
};

// `what` is "[Class.method] name". The value must lie in [lowest, highest].
std::int64_t to_int64(pybind11::handle value, const std::string& what, std::int64_t lowest,
                      std::int64_t highest);

template <class T>
T to_int(const PyInt& argument, const std::string& what, T lowest = 0,
         T highest = static_cast<T>(std::numeric_limits<T>::max())) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const bool wide = static_cast<std::uint64_t>(highest) > static_cast<std::uint64_t>(kMax);
  return static_cast<T>(to_int64(argument.value, what, static_cast<std::int64_t>(lowest),
                                 wide ? kMax : static_cast<std::int64_t>(highest)));
}

// Integers of a one-dimensional array or a sequence of ints, `lowest` to `highest`. int32 and
// int64 arrays in one piece are read without an object per element. T: std::uint32_t or
// std::uint64_t.
template <class T>
std::vector<T> to_ints(pybind11::handle value, const std::string& what, std::int64_t lowest,
                       std::int64_t highest);

// Token ids from a one-dimensional integer array or a sequence of ints, 0 to 2**31 - 1.
std::vector<Token> to_tokens(pybind11::handle value, const std::string& what);

// A span of positions: a pair of ints from 0 to 2**31 - 1, or None. `method` is "[Class.method] ".
std::optional<Span> to_span(pybind11::handle value, const std::string& method);

}  // namespace pykv::bindings

namespace pybind11::detail {
template <>
struct type_caster<pykv::bindings::PyInt> {
  PYBIND11_TYPE_CASTER(pykv::bindings::PyInt, const_name("int"));
  bool load(handle source, bool) {
    value.value = reinterpret_borrow<object>(source);
    return true;
  }
};
}  // namespace pybind11::detail
