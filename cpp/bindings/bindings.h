// Floor 6. One bind_*() per public header; module.cpp calls them in order.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "pykv/layer_table.h"

namespace pykv::bindings {

void bind_errors(pybind11::module_& m);      // errors.h
void bind_build_info(pybind11::module_& m);  // build_info.h
void bind_layers(pybind11::module_& m);      // layer_table.h, rope.h
void bind_backend(pybind11::module_& m);     // dtype.h, quant.h, backend.h
void bind_cache(pybind11::module_& m);       // cache.h, policy.h
void bind_model(pybind11::module_& m);       // gguf.h, model.h, sampling.h
void bind_engine(pybind11::module_& m);      // engine.h

WindowKind parse_window_kind(const std::string& name);  // throws InvalidArgument naming the kinds
const char* window_kind_name(WindowKind kind);

}  // namespace pykv::bindings
