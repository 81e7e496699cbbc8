#include "bindings.h"
#include "pykv/errors.h"

namespace py = pybind11;

namespace pykv::bindings {
namespace {

// A Python exception class that is a pykv.Error and, where `builtin` is given, also
// a built-in, so that `except ValueError` works for callers who do not know pykv.
py::object make_class(py::module_& m, const char* name, const py::object& base, PyObject* builtin) {
  py::list parents;
  parents.append(base);
  if (builtin != nullptr) parents.append(py::reinterpret_borrow<py::object>(builtin));
  const py::tuple bases(parents);
  py::object type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyType_Type));
  py::dict attributes;
  attributes["__module__"] = "pykv";
  py::object cls = type(name, bases, attributes);
  m.attr(name) = cls;
  return cls;
}

struct Classes {
  py::object error, invalid_argument, out_of_cells, out_of_memory, stale_plan, corrupt_model,
      unsupported_model, unsupported, busy, integrity_error;
};

Classes* classes = nullptr;  // lives as long as the interpreter

void set(const py::object& cls, const std::exception& error) { PyErr_SetString(cls.ptr(), error.what()); }

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidArgument& e) {
    set(classes->invalid_argument, e);
  } catch (const OutOfCells& e) {
    set(classes->out_of_cells, e);
  } catch (const OutOfMemory& e) {
    set(classes->out_of_memory, e);
  } catch (const StalePlan& e) {
    set(classes->stale_plan, e);
  } catch (const CorruptModel& e) {
    set(classes->corrupt_model, e);
  } catch (const UnsupportedModel& e) {
    set(classes->unsupported_model, e);
  } catch (const Unsupported& e) {
    set(classes->unsupported, e);
  } catch (const Busy& e) {
    set(classes->busy, e);
  } catch (const IntegrityError& e) {
    set(classes->integrity_error, e);
  } catch (const Error& e) {
    set(classes->error, e);
  }
}

}  // namespace

void bind_errors(py::module_& m) {
  auto* made = new Classes;
  made->error = make_class(m, "Error", py::reinterpret_borrow<py::object>(PyExc_Exception), nullptr);
  const auto derive = [&](const char* name, PyObject* builtin) {
    return make_class(m, name, made->error, builtin);
  };
  made->invalid_argument = derive("InvalidArgument", PyExc_ValueError);
  made->out_of_cells = derive("OutOfCells", PyExc_MemoryError);
  made->out_of_memory = derive("OutOfMemory", PyExc_MemoryError);
  made->stale_plan = derive("StalePlan", nullptr);
  made->corrupt_model = derive("CorruptModel", PyExc_ValueError);
  made->unsupported_model = derive("UnsupportedModel", PyExc_ValueError);
  made->unsupported = derive("Unsupported", PyExc_NotImplementedError);
  made->busy = derive("Busy", nullptr);
  made->integrity_error = derive("IntegrityError", nullptr);
  classes = made;
  py::register_exception_translator(&translate);
}

}  // namespace pykv::bindings
