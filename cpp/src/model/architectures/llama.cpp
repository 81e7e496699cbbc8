// Llama 1 to 3, and what was made like them: Mistral, SmolLM, TinyLlama, Yi.
#include "model/architecture.h"

namespace pykv {

const Architecture kLlama{"llama",
                          {.rope_interleaved = true,  // converters permute q and k for it
                           .qkv_bias = Need::optional,
                           .output_bias = Need::optional,
                           .ffn_bias = Need::optional}};

}  // namespace pykv
