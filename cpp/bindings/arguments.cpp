#include "arguments.h"

#include <cstring>
#include <optional>
#include <utility>

namespace py = pybind11;

namespace pykv::bindings {
namespace {

std::string type_name(py::handle value) { return Py_TYPE(value.ptr())->tp_name; }

bool is_integer(py::handle value) { return !PyBool_Check(value.ptr()) && PyIndex_Check(value.ptr()); }

// The value of an int itself, not of what can be turned into one; nullopt beyond 64 bits.
std::optional<std::int64_t> plain_int(py::handle value) {
  if (!PyLong_CheckExact(value.ptr())) return std::nullopt;
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  return overflow == 0 ? std::optional<std::int64_t>(result) : std::nullopt;
}

[[noreturn]] void throw_range(const std::string& what, const std::string& value, std::int64_t lowest,
                              std::int64_t highest) {
  throw InvalidArgument(what + " is " + value + ", must be " + std::to_string(lowest) + " to " +
                        std::to_string(highest));
}

// Elements of an array in one piece, which may lie at any address; nullopt if one is out of
// range. No branch inside, so that the loop becomes vector instructions.
template <class T, class Element>
std::optional<std::vector<T>> copied(const void* data, std::size_t count, std::int64_t lowest,
                                     std::int64_t highest) {
  std::vector<T> out(count);
  bool outside = false;
  for (std::size_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, static_cast<const std::byte*>(data) + i * sizeof(Element), sizeof(Element));
    outside |= element < lowest || element > highest;
    out[i] = static_cast<T>(element);
  }
  if (outside) return std::nullopt;
  return out;
}

template <class T>
std::optional<std::vector<T>> from_plain_array(const py::array& array, std::int64_t lowest,
                                               std::int64_t highest) {
  const auto size = static_cast<std::size_t>(array.size());
  if (py::isinstance<py::array_t<std::int32_t, py::array::c_style>>(array))
    return copied<T, std::int32_t>(array.data(), size, lowest, highest);
  if (py::isinstance<py::array_t<std::int64_t, py::array::c_style>>(array))
    return copied<T, std::int64_t>(array.data(), size, lowest, highest);
  return std::nullopt;
}

template <class T>
std::vector<T> from_array(const py::array& array, const std::string& what, std::int64_t lowest,
                          std::int64_t highest) {
  if (array.ndim() != 1) {
    throw InvalidArgument(what + " is an array of " + std::to_string(array.ndim()) +
                          " dimensions, must be one-dimensional");
  }
  if (auto out = from_plain_array<T>(array, lowest, highest)) return std::move(*out);
  const char kind = array.dtype().kind();
  if (kind != 'i' && kind != 'u') {
    throw py::type_error(what + " is an array of " + py::str(array.dtype()).cast<std::string>() +
                         ", must hold integers");
  }
  const bool may_wrap = kind == 'u' && array.itemsize() == 8;  // as int64; shows as negative
  const auto wide = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>(array);
  std::vector<T> out;
  out.reserve(static_cast<std::size_t>(wide.size()));
  for (py::ssize_t i = 0; i < wide.size(); ++i) {
    const std::int64_t value = wide.at(i);
    if (value < lowest || value > highest) {
      const std::string text =
          may_wrap ? std::to_string(static_cast<std::uint64_t>(value)) : std::to_string(value);
      throw_range(what + "[" + std::to_string(i) + "]", text, lowest, highest);
    }
    out.push_back(static_cast<T>(value));
  }
  return out;
}

}  // namespace

std::int64_t to_int64(py::handle value, const std::string& what, std::int64_t lowest, std::int64_t highest) {
  if (!is_integer(value)) throw py::type_error(what + " must be an int, not " + type_name(value));
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) {
    throw_range(what, overflow > 0 ? "greater than 2**63 - 1" : "less than -2**63", lowest, highest);
  }
  if (result < lowest || result > highest) throw_range(what, std::to_string(result), lowest, highest);
  return result;
}

template <class T>
std::vector<T> to_ints(py::handle value, const std::string& what, std::int64_t lowest, std::int64_t highest) {
  if (py::isinstance<py::array>(value))
    return from_array<T>(py::reinterpret_borrow<py::array>(value), what, lowest, highest);
  if (PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr()) || !PySequence_Check(value.ptr())) {
    throw py::type_error(what + " must be a sequence of ints, not " + type_name(value));
  }
  const auto sequence = py::reinterpret_borrow<py::sequence>(value);
  std::vector<T> out;
  out.reserve(sequence.size());
  // Held: an item that the sequence made just now (range does) has no other reference.
  for (const py::object item : sequence) {
    const std::optional<std::int64_t> plain = plain_int(item);
    const bool in_range = plain && *plain >= lowest && *plain <= highest;
    out.push_back(static_cast<T>(
        in_range ? *plain : to_int64(item, what + "[" + std::to_string(out.size()) + "]", lowest, highest)));
  }
  return out;
}

template std::vector<std::uint32_t> to_ints(py::handle, const std::string&, std::int64_t, std::int64_t);
template std::vector<std::uint64_t> to_ints(py::handle, const std::string&, std::int64_t, std::int64_t);

std::vector<Token> to_tokens(py::handle value, const std::string& what) {
  return to_ints<Token>(value, what, 0, kMaxPos);
}

std::optional<Span> to_span(py::handle value, const std::string& method) {
  if (value.is_none()) return std::nullopt;
  const bool is_pair = PySequence_Check(value.ptr()) && !PyUnicode_Check(value.ptr()) &&
                       !PyBytes_Check(value.ptr()) && py::len(value) == 2;
  if (!is_pair) {
    throw py::type_error(method + "span must be a pair (begin, end) or None, not " +
                         py::repr(value).cast<std::string>());
  }
  const auto pair = py::reinterpret_borrow<py::sequence>(value);
  return Span{static_cast<Pos>(to_int64(pair[0], method + "begin", 0, kMaxPos)),
              static_cast<Pos>(to_int64(pair[1], method + "end", 0, kMaxPos))};
}

}  // namespace pykv::bindings
