#include "bindings.h"

PYBIND11_MODULE(_core, m) {
  using namespace pykv::bindings;
  m.doc() = "C++ core of pykv: KV cache, model and engine.";
  bind_errors(m);
  bind_build_info(m);
  bind_layers(m);
  bind_backend(m);
  bind_cache(m);
  bind_model(m);
  bind_engine(m);
}
