#include "arguments.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

std::string type_name(py::handle value) { return Py_TYPE(value.ptr())->tp_name; }

bool is_integer(py::handle value) { return !PyBool_Check(value.ptr()) && PyIndex_Check(value.ptr()); }

[[noreturn]] void throw_range(const std::string& what, const std::string& value, std::int64_t lowest,
                              std::int64_t highest) {
  throw InvalidArgument(what + " is " + value + ", must be " + std::to_string(lowest) + " to " +
                        std::to_string(highest));
}

std::vector<Token> from_array(const py::array& array, const std::string& what) {
  if (array.ndim() != 1) {
    throw InvalidArgument(what + " is an array of " + std::to_string(array.ndim()) +
                          " dimensions, must be one-dimensional");
  }
  const char kind = array.dtype().kind();
  if (kind != 'i' && kind != 'u') {
    throw py::type_error(what + " is an array of " + py::str(array.dtype()).cast<std::string>() +
                         ", must hold integers");
  }
  const bool may_wrap = kind == 'u' && array.itemsize() == 8;  // as int64; shows as negative
  const auto wide = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>(array);
  std::vector<Token> tokens;
  tokens.reserve(static_cast<std::size_t>(wide.size()));
  for (py::ssize_t i = 0; i < wide.size(); ++i) {
    const std::int64_t id = wide.at(i);
    if (id < 0 || id > kMaxPos) {
      throw_range(what + "[" + std::to_string(i) + "]",
                  may_wrap ? std::to_string(static_cast<std::uint64_t>(id)) : std::to_string(id), 0, kMaxPos);
    }
    tokens.push_back(static_cast<Token>(id));
  }
  return tokens;
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

std::vector<Token> to_tokens(py::handle value, const std::string& what) {
  if (py::isinstance<py::array>(value)) return from_array(py::reinterpret_borrow<py::array>(value), what);
  if (PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr()) || !PySequence_Check(value.ptr())) {
    throw py::type_error(what + " must be a sequence of ints, not " + type_name(value));
  }
  const auto sequence = py::reinterpret_borrow<py::sequence>(value);
  std::vector<Token> tokens;
  tokens.reserve(sequence.size());
  // Held: an item that the sequence made just now (range does) has no other reference.
  for (const py::object item : sequence) {
    tokens.push_back(
        static_cast<Token>(to_int64(item, what + "[" + std::to_string(tokens.size()) + "]", 0, kMaxPos)));
  }
  return tokens;
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
