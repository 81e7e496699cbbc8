// Floor 4. The tensors of a decoder, by the names of GGUF.
#pragma once

#include <optional>
#include <vector>

#include "model/decoder_spec.h"
#include "model/dense.h"
#include "model/experts.h"
#include "model/weight_plan.h"
#include "pykv/backend.h"
#include "pykv/model.h"

namespace pykv {

using Norm = std::optional<WeightId>;  // the gain, where there is a norm

// A layer that mixes tokens without attention. Its input is cut into parts by rows of one matrix.
struct RecurrentWeights {
  Dense gate, x;           // mamba2: z and x, b, c together; short_conv: c and x
  Dense other;             // mamba2: dt; short_conv: b
  ConvParams conv;         // without SiLU, which the layer knows
  WeightId a, d, dt_bias;  // of mamba2
  Norm norm;               // likewise
  Dense out;
};

struct LayerWeights {
  Norm attention_norm, attention_post_norm, ffn_norm, ffn_post_norm;
  Norm q_norm, k_norm;
  Dense q, k, v, o;
  RecurrentWeights recurrent;
  Dense gate, up, down;      // of a dense layer
  ExpertLayer experts;       // of one of experts
  std::vector<float> sinks;  // per head, or empty
};

struct DecoderWeights {
  std::vector<LayerWeights> layers;
  WeightId embedding;
  Norm output_norm;
  Dense output;
  std::uint64_t parameters = 0;
};

// Checks all tensors of the file against what `spec` and `config` ask for, then loads them.
DecoderWeights load_decoder_weights(const GgufFile& file, const DecoderSpec& spec, const ModelConfig& config,
                                    Backend& backend, const ModelOptions& options);

}  // namespace pykv
