// OLMo 2: sublayers normalize their output, not their input; the norms of queries and keys
// look at all heads together.
#include "model/architecture.h"

namespace pykv {

const Architecture kOlmo2{"olmo2",
                          {.norm_before = false, .norm_after = true, .qk_norm = HeadNorm::whole_row}};

}  // namespace pykv
