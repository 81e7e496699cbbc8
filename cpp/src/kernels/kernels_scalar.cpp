#include <cstring>
#include <utility>

#include "kernels/k_panel.h"
#include "kernels/kernels.h"
#include "kernels/tier_macros.h"
#include "pykv/quant.h"

namespace pykv::kernels {
namespace {
// The vocabulary comes first.
// clang-format off
#include "kernels/vec_scalar.inl.h"
#include "kernels/vec_common.inl.h"
#include "kernels/dot_scalar.inl.h"
#include "kernels/tier.inl.h"
// clang-format on
}  // namespace

const Kernels* scalar_kernels() {
  static constexpr Kernels table = make_table("scalar");
  return &table;
}

}  // namespace pykv::kernels
