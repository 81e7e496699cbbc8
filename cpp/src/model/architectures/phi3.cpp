// Phi 3, 3.5 and 4 (mini too): one matrix for queries, keys and values, one for gate and up.
#include "model/architecture.h"

namespace pykv {

const Architecture kPhi3{"phi3", {.gate_in_up = true}};

}  // namespace pykv
