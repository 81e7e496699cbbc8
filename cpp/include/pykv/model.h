// Floor 4. A decoder that runs on the cache: weights from a GGUF file, forward pass over
// a Step. Architectures are one small file each in cpp/src/model/architectures/ (this build:
// gemma2, gemma3, gpt-oss, granitehybrid, lfm2, llama, mamba2, olmo2, phi3, qwen2, qwen3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pykv/backend.h"
#include "pykv/cache.h"
#include "pykv/gguf.h"
#include "pykv/layer_table.h"
#include "pykv/precision.h"
#include "pykv/state_layout.h"

namespace pykv {

struct ModelOptions {
  Precision precision = Precision::fast;  // of linear layers
  // Tokens that no sequence will exceed, 0 or more than trained: the trained context. Models
  // with two sets of rotary factors (longrope) use the one for short sequences if this allows.
  std::uint32_t context = 0;
  // Told the bytes of weights that are loaded and of all. What it throws ends the loading.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

// Sizes of the recurrent layers of a model.
struct RecurrentSizes {
  std::vector<bool> layers;      // which of all; empty: none
  std::uint32_t taps = 0;        // of the causal convolution
  std::uint32_t channels = 0;    // that go through it
  std::uint32_t heads = 0;       // of the scan; 0: there is none
  std::uint32_t head_dim = 0;    // elements of a head
  std::uint32_t groups = 0;      // of heads that share b and c
  std::uint32_t state_size = 0;  // elements of b and c
  std::uint32_t inner() const { return heads * head_dim; }
};

struct ModelConfig {
  std::string architecture;  // general.architecture
  std::string name;          // general.name, may be empty
  std::uint32_t layers = 0;
  std::uint32_t width = 0;  // embedding length
  std::uint32_t feed_forward = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t vocab = 0;
  std::uint32_t trained_context = 0;  // tokens
  std::uint32_t context = 0;          // longest sequence: as trained, or less by ModelOptions
  Precision precision = Precision::fast;
  float norm_epsilon = 1e-5F;
  float attention_scale = 0;  // multiplies q·k
  float logit_scale = 1;      // multiplies logits
  RopeParams rope;
  float rope_magnitude = 1;        // multiplies the rotated elements of q and k
  std::uint32_t experts = 0;       // of a feed-forward layer; 0: it is dense
  std::uint32_t experts_used = 0;  // of a token
  bool sinks = false;
  float embedding_scale = 1;
  float attention_softcap = 0;      // 0: none
  float logit_softcap = 0;          // 0: none
  std::uint32_t window = 0;         // positions that window layers see; 0: there are no such layers
  std::vector<bool> window_layers;  // which, by layer; empty: none
  RopeParams window_rope;           // of window layers
  float window_rope_magnitude = 1;

  RecurrentSizes recurrent;
  float residual_scale = 1;  // multiplies what a sublayer adds

  bool is_recurrent(std::uint32_t layer) const {
    return !recurrent.layers.empty() && recurrent.layers[layer];
  }
  bool windowed(std::uint32_t layer) const { return window != 0 && window_layers[layer]; }
};

// Reads and checks the configuration only. Throws UnsupportedModel naming the
// architecture or feature, CorruptModel for values that do not fit together.
ModelConfig read_model_config(const GgufFile& file, const ModelOptions& options = {});
LayerTable layer_table(const ModelConfig& config);
RecurrentTable recurrent_table(const ModelConfig& config);  // for CacheConfig; empty: no such layers
std::vector<RopeParams> ropes(const ModelConfig& config);   // by rope_id, for CacheConfig

class Model {
 public:
  // Checks everything, then loads weights into `backend`, which must outlive the model and
  // keeps them until it is destroyed. Lets go of the file's mapped pages.
  Model(const GgufFile& file, Backend& backend, const ModelOptions& options = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const;
  std::size_t weight_bytes() const;  // resident
  std::uint64_t parameters() const;

  // Runs all layers for the rows of `step` (tokens.size() == step.rows(), ids in
  // [0, vocab)), writing and attending through it, and returns the logits of the rows in
  // `logit_rows` (ascending), [logit_rows.size(), vocab], in `logits`. Does not finish
  // the step; after a throw it can go on or be rolled back. At most `max_rows()` rows a
  // call. Scratch is kept between calls; a second thread waits for its turn. Throws
  // InvalidArgument, also for a step of another backend or another layer table.
  void forward(Step& step, std::span<const Token> tokens, std::span<const std::uint32_t> logit_rows,
               std::span<float> logits);
  static constexpr std::uint32_t max_rows() { return 8192; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pykv
