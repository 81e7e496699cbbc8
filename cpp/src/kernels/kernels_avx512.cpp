#include "kernels/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/k_panel.h"
#include "kernels/tier_macros.h"
#include "pykv/quant.h"

PYKV_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
namespace pykv::kernels {
namespace {
// The vocabulary comes first.
// clang-format off
#include "kernels/vec_avx512.inl.h"
#include "kernels/vec_common.inl.h"
#include "kernels/dot_avx512.inl.h"
#include "kernels/tier.inl.h"
#include "kernels/int16.inl.h"
#include "kernels/int16_avx512.inl.h"
#include "kernels/multiply_pairs.inl.h"
#include "kernels/attention_int16.inl.h"
#include "kernels/attention_int16_weigh.inl.h"
// clang-format on
}  // namespace
}  // namespace pykv::kernels
PYKV_TARGET_END

namespace pykv::kernels {

const Kernels* avx512_kernels() {
  static constexpr Kernels table = [] {
    Kernels made = make_table("avx512");
    made.convert_int16 = convert_int16;
    made.prepare_int16 = prepare_int16;
    made.score_int16 = score_int16;
    made.weigh_int16 = weigh_int16;
    return made;
  }();
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                         __builtin_cpu_supports("avx512vnni");
  return supported ? &table : nullptr;
}

}  // namespace pykv::kernels

#else

namespace pykv::kernels {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace pykv::kernels

#endif
