// Granite 4 and Bamba, dense: Mamba-2 layers and a few of attention, which mostly do not rotate.
#include "model/architecture.h"

namespace pykv {

const Architecture kGraniteHybrid{"granitehybrid",
                                  {.recurrent = Recurrent::mamba2,
                                   .rope_if_told = true,
                                   .divides_logits = true,
                                   .rope_interleaved = true,
                                   .qkv_bias = Need::optional,
                                   .output_bias = Need::optional}};

}  // namespace pykv
