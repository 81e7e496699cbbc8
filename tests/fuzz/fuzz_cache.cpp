// libFuzzer's entry point; see cache_run.h.
#include "cache_run.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::run_cache({data, size});
  return 0;
}
