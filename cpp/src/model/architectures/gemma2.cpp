// Gemma 2: every second layer sees a window; scores and logits are capped softly. The model of
// 27B parameters has 46 layers.
#include "model/architecture.h"

namespace pykv {

const Architecture kGemma2{"gemma2",
                           {.norm_after = true,
                            .scaled_embedding = true,
                            .activation = Activation::gelu,
                            .window = {.period = 2, .size = 4096},
                            .attention_softcap = 50.0F,
                            .logit_softcap = 30.0F,
                            .precise_activations = true,
                            .width_scaled_layers = 46}};

}  // namespace pykv
