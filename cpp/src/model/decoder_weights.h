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

struct LayerWeights {
  Norm attention_norm, attention_post_norm, ffn_norm, ffn_post_norm;
  Norm q_norm, k_norm;
  Dense q, k, v, o;
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
