// The body of a tier: included once by each kernels_*.cpp inside its target region and an
// anonymous namespace, after the tier's vocabulary (vec_*, vec_common, dot_*). Standard headers come before
// the region: code of the standard library compiled for AVX could be shared, through weak symbols, with
// callers on machines that have none.

// Each builds on those before it.
// clang-format off
#include "kernels/decode.inl.h"
#include "kernels/decode_panel.inl.h"
#include "kernels/decode_cells.inl.h"
#include "kernels/hadamard.inl.h"
#include "kernels/matrix.inl.h"
#include "kernels/decode_k.inl.h"
#include "kernels/decode_weight.inl.h"
#include "kernels/linear.inl.h"
#include "kernels/activations.inl.h"
#include "kernels/linear_int8.inl.h"
#include "kernels/softmax.inl.h"
#include "kernels/attention.inl.h"
#include "kernels/rows.inl.h"
#include "kernels/recurrent.inl.h"
#include "kernels/limits.inl.h"
// clang-format on

constexpr Kernels make_table(const char* name) {
  return {.name = name,
          .hadamard = hadamard,
          .decode_panel = decode_panel,
          .decode_cells = decode_cells,
          .encode_f16 = encode_f16,
          .encode_q8_0 = encode_q8_0,
          .linear = linear,
          .quantize = quantize,
          .linear_int8 = linear_int8,
          .prepare = prepare,
          .score = score,
          .weigh = weigh,
          .convert_int16 = nullptr,
          .prepare_int16 = prepare,
          .score_int16 = score,
          .weigh_int16 = weigh,
          .prepare_bf16 = prepare,
          .score_bf16 = score,
          .weigh_bf16 = weigh,
          .merge = merge,
          .normalize = normalize,
          .rms_norm = rms_norm,
          .silu_mul = silu_mul,
          .gelu_mul = gelu_mul,
          .clamped_silu_mul = clamped_silu_mul,
          .softcap = softcap,
          .add = add,
          .convolve = convolve,
          .scan = scan,
          .burn_f32 = burn_f32,
          .burn_int8 = burn_int8,
          .read_bytes = read_bytes};
}
