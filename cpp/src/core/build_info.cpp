#include "pykv/build_info.h"

namespace pykv {

BuildInfo build_info() { return {PYKV_VERSION, PYKV_COMPILER, PYKV_BUILD_TYPE, PYKV_BACKEND_NAME}; }

}  // namespace pykv
