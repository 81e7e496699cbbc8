// Qwen 3, dense: each head's query and key is normalized before it is rotated.
#include "model/architecture.h"

namespace pykv {

const Architecture kQwen3{"qwen3", {.qk_norm = HeadNorm::per_head, .qkv_bias = Need::optional}};

}  // namespace pykv
