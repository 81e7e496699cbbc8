// Floor 1. What this binary is.
#pragma once

#include <string>

namespace pykv {

struct BuildInfo {
  std::string version;   // of the distribution, e.g. "0.1.0"
  std::string compiler;  // e.g. "GNU 12.2.0"
  std::string build_type;
  std::string backend;  // "cpu" or "cuda"
};
BuildInfo build_info();

}  // namespace pykv
