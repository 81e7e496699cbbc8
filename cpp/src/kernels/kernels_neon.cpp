#include "kernels/kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include <cstring>
#include <utility>

#include "kernels/k_panel.h"
#include "kernels/tier_macros.h"
#include "pykv/quant.h"

#if defined(__clang__)
PYKV_TARGET_BEGIN("dotprod")
#else
PYKV_TARGET_BEGIN("arch=armv8.2-a+dotprod")
#endif
namespace pykv::kernels {
namespace {
// The vocabulary comes first.
// clang-format off
#include "kernels/vec_neon.inl.h"
#include "kernels/vec_common.inl.h"
#include "kernels/dot_neon.inl.h"
#include "kernels/tier.inl.h"
// clang-format on
}  // namespace
}  // namespace pykv::kernels
PYKV_TARGET_END

namespace pykv::kernels {

namespace {
bool has_dot_product() {
#if defined(__linux__)
  constexpr unsigned long kDotProduct = 1UL << 20;  // HWCAP_ASIMDDP of the kernel's ABI
  return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#else
  return true;  // every Mac has it
#endif
}
}  // namespace

const Kernels* neon_kernels() {
  static constexpr Kernels table = make_table("neon");
  return has_dot_product() ? &table : nullptr;
}

}  // namespace pykv::kernels

#else

namespace pykv::kernels {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace pykv::kernels

#endif
