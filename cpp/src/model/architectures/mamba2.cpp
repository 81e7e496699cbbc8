// Mamba 2: only recurrent layers, no feed-forward ones.
#include "model/architecture.h"

namespace pykv {

const Architecture kMamba2{"mamba2",
                           {.recurrent = Recurrent::mamba2, .attention = false, .feed_forward = false}};

}  // namespace pykv
