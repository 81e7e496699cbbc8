// Floor 6, private. The parts of bind_cache(), and values of cache.h as plain Python data
// with the field names of C++.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "pykv/cache.h"

namespace pykv::bindings {

void bind_steps(pybind11::module_& m, pybind11::class_<Cache>& cache);

pybind11::dict to_dict(const PoolStats& stats);
pybind11::dict to_dict(const CacheStats& stats);
pybind11::list to_list(const std::vector<PrefixTree::NodeView>& nodes);

}  // namespace pykv::bindings
