// Floor 4. Layers and weights of one loaded model; runs what a DecoderSpec describes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/decoder_spec.h"
#include "model/decoder_weights.h"
#include "model/row_buffer.h"
#include "pykv/cache.h"
#include "pykv/model.h"

namespace pykv {

class Decoder {
 public:
  // Checks everything, then loads. `backend` must outlive the decoder.
  Decoder(const GgufFile& file, const DecoderSpec& spec, const ModelConfig& config, Backend& backend,
          const ModelOptions& options);

  // Runs all layers for the rows of `step` and leaves the last layer's output for those that are wanted,
  // before the final norm, in the returned rows, which stay valid until the next call. `wanted` ascends.
  Rows run_layers(Step& step, std::span<const Token> tokens, std::span<const std::uint32_t> wanted);
  // Final norm and output matrix: x [n, width] -> logits [n, vocab]. Overwrites x.
  void head(Rows x, Rows logits);

  std::uint64_t parameters() const { return weights_.parameters; }

 private:
  void reserve(std::uint32_t count);
  // The layer that mixes tokens; its output, in h_, before the post norm and the residual.
  void mix(Step& step, std::uint32_t index, std::uint32_t count);
  // The last layer's, after which only wanted rows are left: of the others it takes K and V.
  void mix_wanted(Step& step, std::uint32_t index, std::uint32_t count,
                  std::span<const std::uint32_t> wanted);
  // From here on only these of `count` rows are there.
  void keep(std::uint32_t count, std::span<const std::uint32_t> rows);
  void attention(Step& step, std::uint32_t index, Rows in, std::uint32_t count);
  // K and V of `count` rows, as the layer's weights made them.
  void store_kv(Step& step, std::uint32_t index, std::uint32_t count);
  // What `count` queries find, in h_; they are those of these rows of the step, or of all.
  void attend(Step& step, std::uint32_t index, std::uint32_t count, std::span<const std::uint32_t> rows = {});
  void short_conv(Step& step, std::uint32_t index, Rows in, std::uint32_t count);
  void mamba2(Step& step, std::uint32_t index, Rows in, std::uint32_t count);
  void add_residual(Rows h);
  void feed_forward(const LayerWeights& layer, std::uint32_t count);
  void feed_experts(const LayerWeights& layer, std::uint32_t count);
  // Several layers on one input.
  template <std::size_t n>
  void dense(const std::array<const Dense*, n>& layers, Rows in, const std::array<Rows, n>& outs,
             std::span<const std::uint32_t> precise);
  void activate(Rows gate, Rows up);  // into `gate`
  // Normalizes rows in place, where there is a norm.
  void norm(const Norm& gain, Rows rows);
  // `rows` normalized into `out`, or `rows` themselves where there is no norm.
  Rows normed(const Norm& gain, Rows rows, Rows out);
  // Queries or keys of a layer.
  void rotate(Rows rows, std::uint32_t heads, std::uint32_t layer);

  ModelConfig config_;
  Activation activation_;
  ExpertRunner experts_;
  Recurrent recurrent_;
  bool precise_activations_;
  Backend& backend_;
  DecoderWeights weights_;
  std::uint32_t capacity_ = 0;
  RowBuffer x_, kept_, h_, q_, mixed_, k_, v_, gate_, up_;
  std::vector<Pos> positions_;  // of the rows
  // Rows whose activations get 16 bits: into all layers those of first tokens, into
  // queries, keys, values and out of the gate these.
  std::vector<std::uint32_t> first_, precise_;
  RowBuffer channels_, convolved_, inner_gate_, inner_, steps_;  // of recurrent layers
};

}  // namespace pykv
