// Qwen 2 and 2.5: biases in queries, keys and values.
#include "model/architecture.h"

namespace pykv {

const Architecture kQwen2{"qwen2", {.qkv_bias = Need::always}};

}  // namespace pykv
