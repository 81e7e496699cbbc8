// gpt-oss: experts of a clamped gate, every second layer sees a window, sinks in attention,
// biases everywhere.
#include "model/architecture.h"

namespace pykv {

const Architecture kGptOss{"gpt-oss",
                           {.ffn_norm = "post_attention_norm",
                            .qkv_bias = Need::always,
                            .output_bias = Need::always,
                            .ffn_bias = Need::always,
                            .experts = true,
                            .sinks = true,
                            .activation = Activation::clamped_silu,
                            .window = {.period = 2, .size = 128}}};

}  // namespace pykv
