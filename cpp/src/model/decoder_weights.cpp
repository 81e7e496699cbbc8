#include "model/decoder_weights.h"

#include <string>

#include "model/rope_config.h"

namespace pykv {
namespace {

// Asks for the tensors of the layers, one method for each kind.
class Collector {
 public:
  Collector(const GgufFile& file, const DecoderSpec& spec, const ModelConfig& config, DecoderWeights& into)
      : file_(file), spec_(spec), config_(config), into_(into), plan_(file) {}

  WeightPlan& collect() {
    plan_.want("token_embd.weight", {config_.vocab, config_.width}, into_.embedding);
    for (std::uint32_t i = 0; i < config_.layers; ++i) collect_layer(i);
    const bool other_name = spec_.output_norm != nullptr && !has("output_norm.weight");
    norm(other_name ? spec_.output_norm : "output_norm", config_.width, into_.output_norm);
    if (has("output.weight")) dense("output", {config_.vocab, config_.width}, Need::optional, into_.output);
    for (const char* name : {kRopeFactors, kRopeFactorsLong, kRopeFactorsShort}) plan_.allow(name);
    plan_.refuse_others();
    return plan_;
  }

 private:
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  void norm(const std::string& name, std::uint32_t cols, Norm& into) {
    plan_.want_vector(name + ".weight", {1, cols}, into.emplace());
  }

  // `part` are the rows of the layer in the tensor, all of them by default.
  void dense(const std::string& name, Shape shape, Need bias, Dense& into, RowRange part = {}) {
    plan_.want(name + ".weight", shape, into.weight, part);
    if (!biased(name, bias)) return;
    plan_.want_vector(name + ".bias", {1, shape.rows}, into.bias.emplace(), part);
  }

  // Optional biases are in all layers if they are in the first.
  bool biased(const std::string& name, Need need) const {
    if (need != Need::optional) return need == Need::always;
    if (!name.starts_with("blk.")) return has(name + ".bias");
    return has("blk.0" + name.substr(name.find('.', 4)) + ".bias");
  }

  void collect_layer(std::uint32_t index) {
    const std::string block = "blk." + std::to_string(index) + ".";
    LayerWeights& layer = into_.layers.at(index);
    norms(block, layer);
    if (!config_.is_recurrent(index)) {
      attention(block, layer);
    } else if (spec_.recurrent == Recurrent::mamba2) {
      mamba2(block, layer.recurrent);
    } else {
      short_conv(block, layer.recurrent);
    }
    if (spec_.experts)
      experts(block, layer.experts);
    else if (spec_.feed_forward)
      feed_forward(block, layer);
    if (spec_.sinks) layer.sinks = plan_.take_floats(block + "attn_sinks.weight", config_.heads);
  }

  void norms(const std::string& block, LayerWeights& layer) {
    if (spec_.norm_before) {
      norm(block + "attn_norm", config_.width, layer.attention_norm);
      if (spec_.feed_forward) norm(block + spec_.ffn_norm, config_.width, layer.ffn_norm);
    }
    if (spec_.norm_after) {
      norm(block + "post_attention_norm", config_.width, layer.attention_post_norm);
      norm(block + "post_ffw_norm", config_.width, layer.ffn_post_norm);
    }
  }

  void attention(const std::string& block, LayerWeights& layer) {
    const std::uint32_t q = q_rows(), kv = kv_rows(), width = config_.width;
    if (has(block + "attn_qkv.weight")) {
      const std::string name = block + "attn_qkv";
      const Shape shape{q + 2 * kv, width};
      dense(name, shape, spec_.qkv_bias, layer.q, {0, q});
      dense(name, shape, spec_.qkv_bias, layer.k, {q, kv});
      dense(name, shape, spec_.qkv_bias, layer.v, {q + kv, kv});
    } else {
      dense(block + "attn_q", {q, width}, spec_.qkv_bias, layer.q);
      dense(block + "attn_k", {kv, width}, spec_.qkv_bias, layer.k);
      dense(block + "attn_v", {kv, width}, spec_.qkv_bias, layer.v);
    }
    qk_norms(block, layer);
    dense(block + "attn_output", {width, q}, spec_.output_bias, layer.o);
  }

  void qk_norms(const std::string& block, LayerWeights& layer) {
    if (spec_.qk_norm == HeadNorm::none) return;
    const bool whole = spec_.qk_norm == HeadNorm::whole_row;
    norm(block + "attn_q_norm", whole ? q_rows() : config_.head_dim, layer.q_norm);
    norm(block + "attn_k_norm", whole ? kv_rows() : config_.head_dim, layer.k_norm);
  }

  // Taps and, of mamba2, a bias of each channel.
  void convolution(const std::string& name, ConvParams& into) {
    const RecurrentSizes& sizes = config_.recurrent;
    plan_.want(name + ".weight", {sizes.channels, sizes.taps}, into.taps);
    if (spec_.recurrent == Recurrent::mamba2)
      plan_.want_vector(name + ".bias", {1, sizes.channels}, into.bias.emplace());
  }

  void short_conv(const std::string& block, RecurrentWeights& layer) {
    const std::uint32_t width = config_.width;
    const std::string in = block + "shortconv.in_proj";
    const Shape shape{3 * width, width};
    dense(in, shape, Need::never, layer.other, {0, width});
    dense(in, shape, Need::never, layer.gate, {width, width});
    dense(in, shape, Need::never, layer.x, {2 * width, width});
    convolution(block + "shortconv.conv", layer.conv);
    dense(block + "shortconv.out_proj", {width, width}, Need::never, layer.out);
  }

  void mamba2(const std::string& block, RecurrentWeights& layer) {
    const RecurrentSizes& sizes = config_.recurrent;
    const std::uint32_t inner = sizes.inner(), channels = sizes.channels, heads = sizes.heads;
    const Shape shape{inner + channels + heads, config_.width};
    dense(block + "ssm_in", shape, Need::never, layer.gate, {0, inner});
    dense(block + "ssm_in", shape, Need::never, layer.x, {inner, channels});
    dense(block + "ssm_in", shape, Need::never, layer.other, {inner + channels, heads});
    convolution(block + "ssm_conv1d", layer.conv);
    plan_.want_vector(block + "ssm_dt.bias", {1, heads}, layer.dt_bias);
    plan_.want_flat(block + "ssm_a", {heads, 1}, layer.a);
    plan_.want_flat(block + "ssm_d", {heads, 1}, layer.d);
    plan_.want_flat(block + "ssm_norm.weight", {sizes.groups, inner / sizes.groups}, layer.norm.emplace());
    dense(block + "ssm_out", {config_.width, inner}, Need::never, layer.out);
  }

  void feed_forward(const std::string& block, LayerWeights& layer) {
    const std::uint32_t inner = config_.feed_forward, width = config_.width;
    if (spec_.gate_in_up) {
      const Shape shape{2 * inner, width};
      dense(block + "ffn_up", shape, spec_.ffn_bias, layer.gate, {0, inner});
      dense(block + "ffn_up", shape, spec_.ffn_bias, layer.up, {inner, inner});
    } else {
      dense(block + "ffn_gate", {inner, width}, spec_.ffn_bias, layer.gate);
      dense(block + "ffn_up", {inner, width}, spec_.ffn_bias, layer.up);
    }
    dense(block + "ffn_down", {width, inner}, spec_.ffn_bias, layer.down);
  }

  void experts(const std::string& block, ExpertLayer& layer) {
    const std::uint32_t inner = config_.feed_forward, width = config_.width;
    dense(block + "ffn_gate_inp", {config_.experts, width}, spec_.ffn_bias, layer.router);
    layer.experts.resize(config_.experts);
    for (std::uint32_t i = 0; i < config_.experts; ++i) {
      expert(block + "ffn_gate_exps", {inner, width}, i, layer.experts[i].gate);
      expert(block + "ffn_up_exps", {inner, width}, i, layer.experts[i].up);
      expert(block + "ffn_down_exps", {width, inner}, i, layer.experts[i].down);
    }
  }

  // One of the matrices of a tensor of all experts, and its row of their biases.
  void expert(const std::string& name, Shape one, std::uint32_t index, Dense& into) {
    plan_.want(name + ".weight", {one.rows * config_.experts, one.cols}, into.weight,
               {index * one.rows, one.rows});
    if (!biased(name, spec_.ffn_bias)) return;
    plan_.want(name + ".bias", {config_.experts, one.rows}, into.bias.emplace(), {index, 1});
  }

  std::uint32_t q_rows() const { return config_.heads * config_.head_dim; }
  std::uint32_t kv_rows() const { return config_.kv_heads * config_.head_dim; }

  const GgufFile& file_;
  const DecoderSpec& spec_;
  const ModelConfig& config_;
  DecoderWeights& into_;
  WeightPlan plan_;
};

}  // namespace

DecoderWeights load_decoder_weights(const GgufFile& file, const DecoderSpec& spec, const ModelConfig& config,
                                    Backend& backend, const ModelOptions& options) {
  DecoderWeights weights;
  weights.layers.resize(config.layers);
  Collector collector(file, spec, config, weights);
  WeightPlan& plan = collector.collect();
  weights.parameters = plan.parameters();
  plan.load(backend, options);
  if (file.find_tensor("output.weight") == nullptr) weights.output.weight = weights.embedding;
  return weights;
}

}  // namespace pykv
