// Gemma 3, text: five layers of six see a window and rotate faster. The model of 27B parameters
// has 62 layers.
#include "model/architecture.h"

namespace pykv {

const Architecture kGemma3{"gemma3",
                           {.norm_after = true,
                            .qk_norm = HeadNorm::per_head,
                            .scaled_embedding = true,
                            .activation = Activation::gelu,
                            .window = {.period = 6, .rope_base = 10000.0F},
                            .precise_activations = true,
                            .width_scaled_layers = 62}};

}  // namespace pykv
