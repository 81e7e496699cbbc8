#include "bindings.h"

namespace pykv::bindings {
// Weak while the floors are being built; a missing floor is simply absent from _core.
__attribute__((weak)) void bind_backend(pybind11::module_& m);
__attribute__((weak)) void bind_cache(pybind11::module_& m);
__attribute__((weak)) void bind_model(pybind11::module_& m);
__attribute__((weak)) void bind_engine(pybind11::module_& m);
}  // namespace pykv::bindings

PYBIND11_MODULE(_core, m) {
  using namespace pykv::bindings;
  m.doc() = "C++ core of pykv: KV cache, model and engine.";
  bind_errors(m);
  bind_build_info(m);
  if (bind_backend != nullptr) bind_backend(m);
  if (bind_cache != nullptr) bind_cache(m);
  if (bind_model != nullptr) bind_model(m);
  if (bind_engine != nullptr) bind_engine(m);
}
