// Reads the configuration of a decoder from the metadata of its file.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>

#include "model/architecture.h"
#include "model/config_reader.h"
#include "model/gguf_format.h"
#include "model/recurrent_config.h"
#include "model/rope_config.h"
#include "pykv/errors.h"
#include "pykv/model.h"

namespace pykv {
namespace {

// Keys that do not change what is computed once the others have been checked.
constexpr std::array<std::string_view, 6> kHarmless{
    "tensor_data_layout",           "rope.scaling.finetuned",
    "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",  "rope.scaling.yarn_beta_slow"};

void read_sizes(const GgufFile& file, ConfigReader& reader, const DecoderSpec& spec, ModelConfig& config) {
  config.layers = reader.positive("block_count", 65536);
  if (config.layers > file.tensors().size())
    reader.corrupt(std::to_string(config.layers) + " layers need more than the " +
                   std::to_string(file.tensors().size()) + " tensors of the file");
  config.width = reader.positive("embedding_length", 1U << 20U);
  config.feed_forward = spec.feed_forward ? reader.positive("feed_forward_length", 1U << 24U)
                                          : reader.number("feed_forward_length", 0);
  config.norm_epsilon = reader.positive_float("attention.layer_norm_rms_epsilon", 1e-5);
}

void read_attention(ConfigReader& reader, std::uint32_t listed_kv_heads, ModelConfig& config) {
  config.heads = reader.positive("attention.head_count", 4096);
  config.kv_heads =
      listed_kv_heads != 0 ? listed_kv_heads : reader.positive("attention.head_count_kv", 4096, config.heads);
  if (config.heads % config.kv_heads != 0)
    reader.corrupt(std::to_string(config.heads) + " heads are no multiple of " +
                   std::to_string(config.kv_heads) + " KV heads");
  config.head_dim = reader.positive("attention.key_length", 65536, std::max(1U, config.width / config.heads));
  const std::uint32_t value_length = reader.positive("attention.value_length", 65536, config.head_dim);
  if (value_length != config.head_dim)
    reader.unsupported("keys of " + std::to_string(config.head_dim) + " elements beside values of " +
                       std::to_string(value_length));
}

// feed_forward becomes the width inside one expert.
void read_experts(ConfigReader& reader, const DecoderSpec& spec, ModelConfig& config) {
  if (!spec.experts) return;
  config.experts = reader.positive("expert_count", 4096);
  config.experts_used = reader.positive("expert_used_count", config.experts);
  config.feed_forward = reader.positive("expert_feed_forward_length", 1U << 24U, config.feed_forward);
}

// What the architecture computes otherwise than most, with what the file says about it.
void read_switches(ConfigReader& reader, const DecoderSpec& spec, ModelConfig& config) {
  config.sinks = spec.sinks;
  if (spec.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  const auto softcap = [&](const char* key, float otherwise) {
    return otherwise == 0.0F ? reader.positive_float_or_zero(key)
                             : reader.positive_float(key, static_cast<double>(otherwise));
  };
  config.attention_softcap = softcap("attn_logit_softcapping", spec.attention_softcap);
  config.logit_softcap = softcap("final_logit_softcapping", spec.logit_softcap);
}

void read_scales(ConfigReader& reader, const DecoderSpec& spec, ModelConfig& config) {
  const bool by_width = config.layers == spec.width_scaled_layers;
  const std::uint32_t size = by_width ? std::max(1U, config.width / config.heads) : config.head_dim;
  const float scale = reader.positive_float_or_zero("attention.scale");
  config.attention_scale = scale != 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(std::max(1U, size)));
  const auto factor = [&](const char* key) {
    const float value = reader.positive_float_or_zero(key);
    return value != 0.0F ? value : 1.0F;
  };
  const float logit_scale = factor("logit_scale");
  config.logit_scale = spec.divides_logits ? 1.0F / logit_scale : logit_scale;
  if (!spec.divides_logits) return;
  config.embedding_scale = factor("embedding_scale");
  config.residual_scale = factor("residual_scale");
}

// A model without attention may still say that it has no heads.
void check_no_attention(ConfigReader& reader) {
  for (const char* key : {"attention.head_count", "attention.head_count_kv"})
    if (reader.number(key, 0) != 0) reader.unsupported(std::string(key) + " beside recurrent layers only");
}

bool rotates(const GgufFile& file, const DecoderSpec& spec, const ModelConfig& config) {
  if (!spec.rope_if_told) return spec.attention;
  return file.scalar(config.architecture + ".rope.scaling.finetuned") == GgufFile::Value(true);
}

// What would make attention something else than causal.
void check_attention(const GgufFile& file, ConfigReader& reader, const ModelConfig& config) {
  if (file.scalar(config.architecture + ".attention.causal") == GgufFile::Value(false))
    reader.unsupported("metadata key '" + config.architecture + ".attention.causal' is false");
}

// Which layers have the window: as the file lists them, or all but the last of each period.
void read_window_layers(const GgufFile& file, ConfigReader& reader, std::uint32_t period,
                        ModelConfig& config) {
  constexpr const char* kKey = "attention.sliding_window_pattern";
  const std::string name = config.architecture + "." + kKey;
  config.window_layers.resize(config.layers);
  if (const auto size = file.array_size(name)) {
    const std::vector<std::int64_t> listed = file.integer_array(name);
    if (*size != config.layers)
      reader.corrupt("metadata key '" + name + "' lists " + std::to_string(*size) + " layers of " +
                     std::to_string(config.layers));
    for (std::uint32_t i = 0; i < config.layers; ++i) config.window_layers[i] = listed[i] != 0;
    reader.mark_read(kKey);
  } else {
    const std::uint32_t count = reader.positive(kKey, 65536, period);
    for (std::uint32_t i = 0; i < config.layers; ++i) config.window_layers[i] = i % count + 1 < count;
  }
}

void read_windows(const GgufFile& file, ConfigReader& reader, const WindowSpec& spec, ModelConfig& config) {
  const std::uint32_t window = reader.number("attention.sliding_window", spec.size);
  if (spec.period != 0) {
    config.window = std::min(window, static_cast<std::uint32_t>(kMaxPos));
    read_window_layers(file, reader, spec.period, config);
    return;
  }
  // A window that no sequence outgrows hides nothing.
  if (window != 0 && window < config.context)
    reader.unsupported("metadata key '" + config.architecture + ".attention.sliding_window' is " +
                       std::to_string(window) + ", less than the context of " +
                       std::to_string(config.context));
}

std::uint32_t read_vocab(const GgufFile& file, ConfigReader& reader) {
  const GgufFile::Tensor* table = file.find_tensor("token_embd.weight");
  if (table == nullptr) reader.corrupt("tensor 'token_embd.weight' is missing");
  const std::uint64_t rows = table->shape.size() == 2 ? table->shape[1] : 0;
  if (rows == 0 || rows > gguf::kMaxArrayElements)
    reader.corrupt("tensor 'token_embd.weight' has no usable number of rows (" + std::to_string(rows) + ")");
  const auto vocab = static_cast<std::uint32_t>(rows);
  const std::uint32_t told = reader.positive("vocab_size", gguf::kMaxArrayElements, vocab);
  const std::uint64_t tokens = file.array_size("tokenizer.ggml.tokens").value_or(vocab);
  if (told != vocab || tokens > vocab)
    reader.corrupt("the embedding has " + std::to_string(vocab) + " rows, the metadata tells of " +
                   std::to_string(told) + " and lists " + std::to_string(tokens) + " tokens");
  return vocab;
}

}  // namespace

ModelConfig read_model_config(const GgufFile& file, const ModelOptions& options) {
  const Architecture& architecture = find_architecture(file);
  const DecoderSpec& spec = architecture.decoder;
  ConfigReader reader(file, architecture.name);
  ModelConfig config;
  config.architecture = architecture.name;
  config.name = file.string_value("general.name", "");
  config.precision = options.precision;
  read_sizes(file, reader, spec, config);
  config.trained_context = reader.positive("context_length", static_cast<std::uint32_t>(kMaxPos));
  config.context =
      options.context == 0 ? config.trained_context : std::min(config.trained_context, options.context);
  read_experts(reader, spec, config);
  const std::uint32_t listed_kv_heads = read_layer_kinds(file, reader, spec, config);
  if (spec.attention)
    read_attention(reader, listed_kv_heads, config);
  else
    check_no_attention(reader);
  read_scales(reader, spec, config);
  read_recurrent(reader, spec, config);
  read_switches(reader, spec, config);
  check_attention(file, reader, config);
  read_windows(file, reader, spec.window, config);
  config.rope.interleaved = spec.rope_interleaved;
  if (rotates(file, spec, config))
    read_rope(file, reader, config);
  else
    for (const char* key : {"rope.dimension_count", "rope.freq_base"}) reader.mark_read(key);
  read_window_rope(reader, spec.window, config);
  config.vocab = read_vocab(file, reader);
  reader.refuse_others(kHarmless);
  try {
    validate(layer_table(config));
  } catch (const Error& error) {
    reader.unsupported(error.what());
  }
  return config;
}

LayerTable layer_table(const ModelConfig& config) {
  LayerSpec layer;
  layer.kv_heads = config.kv_heads;
  layer.k_dim = config.head_dim;
  layer.v_dim = config.head_dim;
  layer.sinks = config.sinks;
  LayerTable layers(config.layers, layer);
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    if (config.is_recurrent(i)) layers[i] = LayerSpec{};
    if (!config.windowed(i)) continue;
    layers[i].window_kind = WindowKind::standard;
    layers[i].window_size = config.window;
    layers[i].rope_id = 1;
  }
  return layers;
}

std::vector<RopeParams> ropes(const ModelConfig& config) {
  std::vector<RopeParams> out{config.rope};
  if (config.window != 0) out.push_back(config.window_rope);
  return out;
}

}  // namespace pykv
