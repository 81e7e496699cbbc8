// Llama: pre-norm blocks of rotary grouped-query attention and a gated feed-forward layer.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "model/architecture.h"
#include "model/config_reader.h"
#include "model/gguf_format.h"
#include "model/printable.h"
#include "model/row_buffer.h"
#include "model/weight_plan.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

// Keys that do not change what is computed once the others have been checked.
constexpr std::array<std::string_view, 5> kHarmless{
    "tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned",
    "rope.scaling.factor", "rope.scaling.type"};

constexpr std::uint32_t kTensorsPerLayer = 9;

// Only the plain rotary embedding. Without a type, a factor means linear scaling.
void check_rope_scaling(const GgufFile& file, const ConfigReader& reader) {
  const std::string type = file.string_value("llama.rope.scaling.type", "");
  if (type == "none") return;
  const double factor = file.float_value("llama.rope.scaling.factor", 0.0);
  const bool plain = (type.empty() || type == "linear") && (factor == 0.0 || factor == 1.0);
  if (!plain)
    reader.unsupported("metadata key 'llama.rope.scaling.type' is " +
                       printable(type.empty() ? "linear" : type) + ", supported is 'none'");
}

void read_attention(ConfigReader& reader, ModelConfig& config) {
  config.heads = reader.positive("attention.head_count", 4096);
  config.kv_heads = reader.positive("attention.head_count_kv", 4096, config.heads);
  if (config.heads % config.kv_heads != 0)
    reader.corrupt(std::to_string(config.heads) + " heads are no multiple of " +
                   std::to_string(config.kv_heads) + " KV heads");
  config.head_dim = reader.positive("attention.key_length", 65536, std::max(1U, config.width / config.heads));
  const std::uint32_t value_length = reader.positive("attention.value_length", 65536, config.head_dim);
  if (value_length != config.head_dim)
    reader.unsupported("keys of " + std::to_string(config.head_dim) + " elements beside values of " +
                       std::to_string(value_length));
  config.rope.dims = reader.positive("rope.dimension_count", 65536, config.head_dim);
  if (config.rope.dims > config.head_dim || config.rope.dims % 2 != 0)
    reader.corrupt("rotation of " + std::to_string(config.rope.dims) + " elements in heads of " +
                   std::to_string(config.head_dim));
  config.rope.base = reader.positive_float("rope.freq_base", 10000.0);
  config.rope.interleaved = true;
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

ModelConfig read_config(const GgufFile& file) {
  ConfigReader reader(file, "llama");
  ModelConfig config;
  config.architecture = "llama";
  config.name = file.string_value("general.name", "");
  config.layers = reader.positive("block_count", 65536);
  if (config.layers > file.tensors().size() / kTensorsPerLayer)
    reader.corrupt(std::to_string(config.layers) + " layers need more than the " +
                   std::to_string(file.tensors().size()) + " tensors of the file");
  config.width = reader.positive("embedding_length", 1U << 20U);
  config.feed_forward = reader.positive("feed_forward_length", 1U << 24U);
  config.context = reader.positive("context_length", static_cast<std::uint32_t>(kMaxPos));
  config.norm_epsilon = reader.positive_float("attention.layer_norm_rms_epsilon", 1e-5);
  read_attention(reader, config);
  check_rope_scaling(file, reader);
  config.vocab = read_vocab(file, reader);
  if (file.scalar("llama.attention.causal") == GgufFile::Value(false))
    reader.unsupported("metadata key 'llama.attention.causal' is false");
  reader.refuse_others(kHarmless);
  try {
    validate(layer_table(config));
  } catch (const Error& error) {
    reader.unsupported(error.what());
  }
  return config;
}

struct Layer {
  WeightId attention_norm, q, k, v, o, ffn_norm, gate, up, down;
};

class Llama final : public Network {
 public:
  Llama(const GgufFile& file, const ModelConfig& config, Backend& backend)
      : config_(config), backend_(backend), layers_(config.layers) {
    WeightPlan plan(file);
    const std::uint32_t width = config.width;
    plan.want("token_embd.weight", config.vocab, width, embedding_);
    for (std::uint32_t i = 0; i < config.layers; ++i) want_layer(plan, i);
    plan.want_vector("output_norm.weight", width, output_norm_);
    const bool tied = file.find_tensor("output.weight") == nullptr;
    if (!tied) plan.want("output.weight", config.vocab, width, output_);
    plan.refuse_others();
    parameters_ = plan.parameters();
    plan.load(backend);
    if (tied) output_ = embedding_;
  }

  Rows run_layers(Step& step, std::span<const Token> tokens) override {
    const auto count = static_cast<std::uint32_t>(tokens.size());
    reserve(count);
    backend_.embed(embedding_, tokens, x_.rows(count));
    for (std::uint32_t i = 0; i < config_.layers; ++i) {
      attention(step, i, count);
      feed_forward(layers_[i], count);
    }
    return x_.rows(count);
  }

  void head(Rows x, Rows logits) override {
    backend_.rms_norm(x, output_norm_, config_.norm_epsilon, x);
    backend_.linear(output_, x, logits);
  }

  std::uint64_t parameters() const override { return parameters_; }

 private:
  std::uint32_t q_width() const { return config_.heads * config_.head_dim; }
  std::uint32_t kv_width() const { return config_.kv_heads * config_.head_dim; }

  void want_layer(WeightPlan& plan, std::uint32_t index) {
    const std::string block = "blk." + std::to_string(index) + ".";
    const std::uint32_t width = config_.width;
    Layer& layer = layers_[index];
    plan.want_vector(block + "attn_norm.weight", width, layer.attention_norm);
    plan.want(block + "attn_q.weight", q_width(), width, layer.q);
    plan.want(block + "attn_k.weight", kv_width(), width, layer.k);
    plan.want(block + "attn_v.weight", kv_width(), width, layer.v);
    plan.want(block + "attn_output.weight", width, q_width(), layer.o);
    plan.want_vector(block + "ffn_norm.weight", width, layer.ffn_norm);
    plan.want(block + "ffn_gate.weight", config_.feed_forward, width, layer.gate);
    plan.want(block + "ffn_up.weight", config_.feed_forward, width, layer.up);
    plan.want(block + "ffn_down.weight", width, config_.feed_forward, layer.down);
  }

  // Scratch for `count` rows; grows in powers of two and is kept.
  void reserve(std::uint32_t count) {
    if (count <= capacity_) return;
    const std::uint32_t rows = std::bit_ceil(std::max(count, 16U));
    capacity_ = 0;  // until all of them exist
    x_ = RowBuffer(backend_, rows, config_.width);
    h_ = RowBuffer(backend_, rows, config_.width);
    q_ = RowBuffer(backend_, rows, q_width());
    mixed_ = RowBuffer(backend_, rows, q_width());
    k_ = RowBuffer(backend_, rows, kv_width());
    v_ = RowBuffer(backend_, rows, kv_width());
    gate_ = RowBuffer(backend_, rows, config_.feed_forward);
    up_ = RowBuffer(backend_, rows, config_.feed_forward);
    capacity_ = rows;
  }

  void attention(Step& step, std::uint32_t index, std::uint32_t count) {
    const Layer& layer = layers_[index];
    const Rows x = x_.rows(count), h = h_.rows(count), q = q_.rows(count), k = k_.rows(count),
               v = v_.rows(count), mixed = mixed_.rows(count);
    backend_.rms_norm(x, layer.attention_norm, config_.norm_epsilon, h);
    backend_.linear(layer.q, h, q);
    backend_.linear(layer.k, h, k);
    backend_.linear(layer.v, h, v);
    backend_.rope(q, config_.heads, config_.rope, step.positions());
    backend_.rope(k, config_.kv_heads, config_.rope, step.positions());
    step.write(index, k, v);
    step.attend(index, q, mixed, {config_.heads, 1.0F / std::sqrt(static_cast<float>(config_.head_dim))});
    backend_.linear(layer.o, mixed, h);
    backend_.add(x, h);
  }

  void feed_forward(const Layer& layer, std::uint32_t count) {
    const Rows x = x_.rows(count), h = h_.rows(count), gate = gate_.rows(count), up = up_.rows(count);
    backend_.rms_norm(x, layer.ffn_norm, config_.norm_epsilon, h);
    backend_.linear(layer.gate, h, gate);
    backend_.linear(layer.up, h, up);
    backend_.silu_mul(gate, up);
    backend_.linear(layer.down, gate, h);
    backend_.add(x, h);
  }

  ModelConfig config_;
  Backend& backend_;
  std::vector<Layer> layers_;
  WeightId embedding_, output_norm_, output_;
  std::uint64_t parameters_ = 0;
  std::uint32_t capacity_ = 0;
  RowBuffer x_, h_, q_, mixed_, k_, v_, gate_, up_;
};

std::unique_ptr<Network> load(const GgufFile& file, const ModelConfig& config, Backend& backend) {
  return std::make_unique<Llama>(file, config, backend);
}

}  // namespace

const Architecture kLlama{"llama", &read_config, &load};

}  // namespace pykv
