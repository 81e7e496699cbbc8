#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace pykv {

Decoder::Decoder(const GgufFile& file, const DecoderSpec& spec, const ModelConfig& config, Backend& backend,
                 const ModelOptions& options)
    : config_(config),
      activation_(spec.activation),
      experts_(config.experts_used, config.feed_forward, spec.activation),
      recurrent_(spec.recurrent),
      precise_activations_(spec.precise_activations),
      backend_(backend),
      weights_(load_decoder_weights(file, spec, config, backend, options)) {}

Rows Decoder::run_layers(Step& step, std::span<const Token> tokens, std::span<const std::uint32_t> wanted) {
  auto count = static_cast<std::uint32_t>(tokens.size());
  reserve(count);
  positions_.assign(step.positions().begin(), step.positions().end());
  // Every later token attends to the first one, whose activations are the largest by far: what
  // rounding does to it, it does to all of them.
  first_.clear();
  precise_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool first = positions_[i] == 0;
    if (first) first_.push_back(i);
    if (first || precise_activations_) precise_.push_back(i);
  }
  backend_.embed(weights_.embedding, tokens, x_.rows(count));
  if (config_.embedding_scale != 1.0F) backend_.scale(x_.rows(count), config_.embedding_scale);
  for (std::uint32_t i = 0; i < config_.layers; ++i) {
    if (i + 1 == config_.layers && wanted.size() < count) {
      mix_wanted(step, i, count, wanted);
      count = static_cast<std::uint32_t>(wanted.size());
    } else {
      mix(step, i, count);
    }
    if (config_.feed_forward != 0 && count != 0) feed_forward(weights_.layers[i], count);
  }
  return x_.rows(count);
}

void Decoder::keep(std::uint32_t count, std::span<const std::uint32_t> rows) {
  backend_.gather(x_.rows(count), rows, kept_.rows(static_cast<std::uint32_t>(rows.size())));
  std::swap(x_, kept_);
  for (std::size_t i = 0; i < rows.size(); ++i) positions_[i] = positions_[rows[i]];
  positions_.resize(rows.size());
  const auto renumber = [&](std::vector<std::uint32_t>& some) {
    std::size_t left = 0;
    for (const std::uint32_t row : some) {
      const auto place = std::lower_bound(rows.begin(), rows.end(), row);
      if (place != rows.end() && *place == row)
        some[left++] = static_cast<std::uint32_t>(place - rows.begin());
    }
    some.resize(left);
  };
  renumber(first_);
  renumber(precise_);
}

void Decoder::head(Rows x, Rows logits) {
  norm(weights_.output_norm, x);
  dense<1>({&weights_.output}, x, {logits}, {});
  if (config_.logit_scale != 1.0F) backend_.scale(logits, config_.logit_scale);
  if (config_.logit_softcap != 0.0F) backend_.softcap(logits, config_.logit_softcap);
}

// Scratch for `count` rows; grows in powers of two and is kept.
void Decoder::reserve(std::uint32_t count) {
  if (count <= capacity_) return;
  const std::uint32_t rows = std::bit_ceil(std::max(count, 16U));
  const std::uint32_t q_width = config_.heads * config_.head_dim;
  const std::uint32_t kv_width = config_.kv_heads * config_.head_dim;
  capacity_ = 0;  // until all of them exist
  x_ = RowBuffer(backend_, rows, config_.width);
  kept_ = RowBuffer(backend_, rows, config_.width);
  h_ = RowBuffer(backend_, rows, config_.width);
  const auto make = [&](RowBuffer& buffer, std::uint32_t width) {
    if (width != 0) buffer = RowBuffer(backend_, rows, width);
  };
  make(q_, q_width);
  make(mixed_, q_width);
  make(k_, kv_width);
  make(v_, kv_width);
  make(gate_, config_.feed_forward);
  make(up_, config_.feed_forward);
  const std::uint32_t inner =
      config_.recurrent.heads == 0 ? config_.recurrent.channels : config_.recurrent.inner();
  make(channels_, config_.recurrent.channels);
  make(convolved_, config_.recurrent.channels);
  make(inner_gate_, inner);
  make(inner_, inner);
  make(steps_, config_.recurrent.heads);
  capacity_ = rows;
}

void Decoder::mix(Step& step, std::uint32_t index, std::uint32_t count) {
  const LayerWeights& layer = weights_.layers[index];
  const Rows h = h_.rows(count), in = normed(layer.attention_norm, x_.rows(count), h);
  if (!config_.is_recurrent(index))
    attention(step, index, in, count);
  else if (recurrent_ == Recurrent::mamba2)
    mamba2(step, index, in, count);
  else
    short_conv(step, index, in, count);
  norm(layer.attention_post_norm, h);
  add_residual(h);
}

void Decoder::mix_wanted(Step& step, std::uint32_t index, std::uint32_t count,
                         std::span<const std::uint32_t> wanted) {
  if (config_.is_recurrent(index)) {
    mix(step, index, count);
    return keep(count, wanted);
  }
  const LayerWeights& layer = weights_.layers[index];
  const auto normed_rows = [&](std::uint32_t rows) {
    return normed(layer.attention_norm, x_.rows(rows), h_.rows(rows));
  };
  dense(std::array{&layer.k, &layer.v}, normed_rows(count), std::array{k_.rows(count), v_.rows(count)},
        precise_);
  store_kv(step, index, count);
  keep(count, wanted);
  if (wanted.empty()) return;
  const auto rows = static_cast<std::uint32_t>(wanted.size());
  dense<1>({&layer.q}, normed_rows(rows), {q_.rows(rows)}, precise_);
  attend(step, index, rows, wanted);
  norm(layer.attention_post_norm, h_.rows(rows));
  add_residual(h_.rows(rows));
}

void Decoder::attention(Step& step, std::uint32_t index, Rows in, std::uint32_t count) {
  const LayerWeights& layer = weights_.layers[index];
  dense(std::array{&layer.q, &layer.k, &layer.v}, in,
        std::array{q_.rows(count), k_.rows(count), v_.rows(count)}, precise_);
  store_kv(step, index, count);
  attend(step, index, count);
}

void Decoder::store_kv(Step& step, std::uint32_t index, std::uint32_t count) {
  const Rows k = k_.rows(count);
  norm(weights_.layers[index].k_norm, k);
  rotate(k, config_.kv_heads, index);
  step.write(index, k, v_.rows(count));
}

void Decoder::attend(Step& step, std::uint32_t index, std::uint32_t count,
                     std::span<const std::uint32_t> rows) {
  const LayerWeights& layer = weights_.layers[index];
  const Rows q = q_.rows(count), mixed = mixed_.rows(count);
  norm(layer.q_norm, q);
  rotate(q, config_.heads, index);
  step.attend(index, q, mixed,
              {.heads = config_.heads,
               .scale = config_.attention_scale,
               .softcap = config_.attention_softcap,
               .sinks = layer.sinks,
               .precision = config_.precision},
              rows);
  dense<1>({&layer.o}, mixed, {h_.rows(count)}, first_);
}

// c * conv(b * x), each element alone.
void Decoder::short_conv(Step& step, std::uint32_t index, Rows in, std::uint32_t count) {
  const RecurrentWeights& layer = weights_.layers[index].recurrent;
  const Rows x = channels_.rows(count), c = inner_gate_.rows(count), b = inner_.rows(count);
  dense(std::array{&layer.other, &layer.gate, &layer.x}, in, std::array{b, c, x}, first_);
  backend_.multiply(x, b);
  step.conv(index, layer.conv, x, b);
  backend_.multiply(c, b);
  dense<1>({&layer.out}, c, {h_.rows(count)}, first_);
}

void Decoder::mamba2(Step& step, std::uint32_t index, Rows in, std::uint32_t count) {
  const RecurrentWeights& layer = weights_.layers[index].recurrent;
  const RecurrentSizes& sizes = config_.recurrent;
  const Rows gate = inner_gate_.rows(count), out = inner_.rows(count), dt = steps_.rows(count),
             x_b_c = channels_.rows(count), convolved = convolved_.rows(count);
  dense(std::array{&layer.gate, &layer.x, &layer.other}, in, std::array{gate, x_b_c, dt}, first_);
  step.conv(index, {layer.conv.taps, layer.conv.bias, true}, x_b_c, convolved);
  step.scan(index,
            {sizes.heads, sizes.head_dim, sizes.groups, sizes.state_size, layer.a, layer.d, layer.dt_bias},
            convolved, dt, out);
  backend_.silu_mul(gate, out);
  backend_.rms_norm(gate, *layer.norm, config_.norm_epsilon, gate, sizes.groups);
  dense<1>({&layer.out}, gate, {h_.rows(count)}, first_);
}

void Decoder::feed_forward(const LayerWeights& layer, std::uint32_t count) {
  if (config_.experts != 0) return feed_experts(layer, count);
  const Rows x = x_.rows(count), h = h_.rows(count), gate = gate_.rows(count), up = up_.rows(count);
  const Rows in = normed(layer.ffn_norm, x, h);
  dense(std::array{&layer.gate, &layer.up}, in, std::array{gate, up}, first_);
  activate(gate, up);
  dense<1>({&layer.down}, gate, {h}, precise_);
  norm(layer.ffn_post_norm, h);
  add_residual(h);
}

void Decoder::add_residual(Rows h) {
  if (config_.residual_scale != 1.0F) backend_.scale(h, config_.residual_scale);
  backend_.add(x_.rows(h.count), h);
}

void Decoder::feed_experts(const LayerWeights& layer, std::uint32_t count) {
  const Rows x = x_.rows(count);
  const Rows sum = experts_.run(backend_, layer.experts, normed(layer.ffn_norm, x, h_.rows(count)));
  norm(layer.ffn_post_norm, sum);
  backend_.add(x, sum);
}

template <std::size_t n>
void Decoder::dense(const std::array<const Dense*, n>& layers, Rows in, const std::array<Rows, n>& outs,
                    std::span<const std::uint32_t> precise) {
  apply(backend_, layers, in, outs, precise);
}

void Decoder::norm(const Norm& gain, Rows rows) {
  if (gain) backend_.rms_norm(rows, *gain, config_.norm_epsilon, rows);
}

Rows Decoder::normed(const Norm& gain, Rows rows, Rows out) {
  if (!gain) return rows;
  backend_.rms_norm(rows, *gain, config_.norm_epsilon, out);
  return out;
}

void Decoder::activate(Rows gate, Rows up) { pykv::activate(backend_, activation_, gate, up); }

void Decoder::rotate(Rows rows, std::uint32_t heads, std::uint32_t layer) {
  if (config_.rope.dims == 0) return;
  const bool windowed = config_.windowed(layer);
  backend_.rope(rows, heads, windowed ? config_.window_rope : config_.rope, positions_,
                windowed ? config_.window_rope_magnitude : config_.rope_magnitude);
}

}  // namespace pykv
