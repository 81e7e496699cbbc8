// Floor 4. The rotary embedding that a model file asks for. Scaled embeddings differ from
// the plain one by the frequency of each pair and by a factor on what is rotated:
//   linear     frequency / factor (positions are squeezed)
//   yarn       fast pairs as they are, slow ones / factor, a ramp between; magnitude
//              0.1 ln(factor) + 1, or as the file says (arXiv:2309.00071, sections 3.2, 3.4)
//   longrope   one divisor per pair from tensor rope_factors_long.weight if sequences may
//              become longer than the original context, else from rope_factors_short.weight;
//              magnitude from rope.scaling.attn_factor (arXiv:2402.13753)
//   llama3     one divisor per pair from tensor rope_freqs.weight; no metadata
#pragma once

#include "model/config_reader.h"
#include "model/decoder_spec.h"
#include "pykv/gguf.h"
#include "pykv/model.h"

namespace pykv {

// Names of the tensors that hold divisors; read_rope() takes what is there.
inline constexpr const char* kRopeFactors = "rope_freqs.weight";
inline constexpr const char* kRopeFactorsLong = "rope_factors_long.weight";
inline constexpr const char* kRopeFactorsShort = "rope_factors_short.weight";

// Sets config.rope (but for `interleaved`) and config.rope_magnitude; head_dim and both
// contexts must be set. CorruptModel, or UnsupportedModel for an unknown kind of scaling.
void read_rope(const GgufFile& file, ConfigReader& reader, ModelConfig& config);

// Sets config.window_rope and its magnitude, after read_rope().
void read_window_rope(ConfigReader& reader, const WindowSpec& spec, ModelConfig& config);

}  // namespace pykv
