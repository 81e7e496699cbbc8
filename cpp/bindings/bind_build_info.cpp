#include "bindings.h"
#include "pykv/build_info.h"

namespace py = pybind11;

namespace pykv::bindings {

void bind_build_info(py::module_& m) {
  m.def(
      "build_info",
      [] {
        const BuildInfo info = build_info();
        py::dict out;
        out["version"] = info.version;
        out["compiler"] = info.compiler;
        out["build_type"] = info.build_type;
        out["backend"] = info.backend;
        return out;
      },
      "Version, compiler, build type and backend of this binary, as a dict of strings.");
}

}  // namespace pykv::bindings
