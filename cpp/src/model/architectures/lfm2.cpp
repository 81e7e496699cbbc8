// LFM 2: short convolutions between gates, and a few layers of attention whose queries and keys
// are normalized by head.
#include "model/architecture.h"

namespace pykv {

const Architecture kLfm2{"lfm2",
                         {.recurrent = Recurrent::short_conv,
                          .output_norm = "token_embd_norm",  // the converter's name
                          .qk_norm = HeadNorm::per_head}};

}  // namespace pykv
