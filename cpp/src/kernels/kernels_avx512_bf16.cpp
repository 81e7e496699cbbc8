#include "kernels/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/k_panel.h"
#include "kernels/tier_macros.h"
#include "pykv/quant.h"

PYKV_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")
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
#include "kernels/attention_pairs.inl.h"
// clang-format on
}  // namespace
}  // namespace pykv::kernels
PYKV_TARGET_END

namespace pykv::kernels {

const Kernels* avx512_bf16_kernels() {
  static constexpr Kernels table = [] {
    Kernels made = make_table("avx512_bf16");
    made.convert_int16 = convert_int16;
    made.prepare_int16 = prepare_int16;
    made.score_int16 = score_int16;
    made.weigh_int16 = weigh_int16;
    made.prepare_bf16 = prepare_pairs;
    made.score_bf16 = score_pairs;
    made.weigh_bf16 = weigh_pairs;
    return made;
  }();
  const bool supported = avx512_kernels() != nullptr && __builtin_cpu_supports("avx512bf16");
  return supported ? &table : nullptr;
}

}  // namespace pykv::kernels

#else

namespace pykv::kernels {
const Kernels* avx512_bf16_kernels() { return nullptr; }
}  // namespace pykv::kernels

#endif
