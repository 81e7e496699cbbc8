// Floor 4. Linear layers and activations of a model, as its parts use them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "model/decoder_spec.h"
#include "pykv/backend.h"

namespace pykv {

// A linear layer: out = weight · in + bias.
struct Dense {
  WeightId weight;
  std::optional<WeightId> bias;
};

inline void apply(Backend& backend, const Dense& layer, Rows in, Rows out) {
  backend.linear(layer.weight, in, out);
  if (layer.bias) backend.add_bias(out, *layer.bias);
}

// Several layers on one input; `precise` as for Backend::linear.
template <std::size_t n>
void apply(Backend& backend, const std::array<const Dense*, n>& layers, Rows in,
           const std::array<Rows, n>& outs, std::span<const std::uint32_t> precise = {}) {
  std::array<WeightId, n> weights;
  for (std::size_t i = 0; i < n; ++i) weights[i] = layers[i]->weight;
  backend.linear(weights, in, outs, precise);
  for (std::size_t i = 0; i < n; ++i)
    if (layers[i]->bias) backend.add_bias(outs[i], *layers[i]->bias);
}

// gate := activation(gate) * up
inline void activate(Backend& backend, Activation activation, Rows gate, Rows up) {
  switch (activation) {
    case Activation::silu:
      return backend.silu_mul(gate, up);
    case Activation::gelu:
      return backend.gelu_mul(gate, up);
    case Activation::clamped_silu:
      return backend.clamped_silu_mul(gate, up);
  }
}

}  // namespace pykv
