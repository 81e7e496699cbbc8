// libFuzzer's entry point; see gguf_run.h.
#include "gguf_run.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::run_gguf({data, size});
  return 0;
}
