// Floor 1. What recurrent layers keep of all tokens before: a row of numbers per layer, and
// where they lie in a slot.
//
//   slot = for each layer: [convolution: the last inputs][scan: the state]
//
// One slot has the state of one sequence in all layers, float32. A slot is written once, by the
// step that makes it, and only read afterwards: sequences and resume points share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pykv/types.h"

namespace pykv {

// Elements of one sequence in one layer; both 0: the layer keeps none.
struct RecurrentSpec {
  std::uint32_t conv_elements = 0;  // (taps - 1) * channels of a causal convolution
  std::uint32_t scan_elements = 0;  // heads * state size * head size
  friend bool operator==(const RecurrentSpec&, const RecurrentSpec&) = default;
};

using RecurrentTable = std::vector<RecurrentSpec>;  // of all layers, or empty

class StateLayout {
 public:
  StateLayout() = default;
  // Throws InvalidArgument for a slot above 2^32 bytes.
  explicit StateLayout(const RecurrentTable& layers);

  std::uint64_t slot_bytes() const { return slot_bytes_; }  // multiple of 4096; 0: no recurrent layer
  // Of the layer's parts inside a slot, in elements.
  std::uint32_t conv_offset(std::uint32_t layer) const { return places_.at(layer).conv; }
  std::uint32_t scan_offset(std::uint32_t layer) const { return places_.at(layer).scan; }
  const RecurrentSpec& layer(std::uint32_t layer) const { return layers_.at(layer); }
  std::uint32_t layer_count() const { return static_cast<std::uint32_t>(layers_.size()); }

 private:
  struct Place {
    std::uint32_t conv = 0, scan = 0;
  };
  RecurrentTable layers_;
  std::vector<Place> places_;
  std::uint64_t slot_bytes_ = 0;
};

}  // namespace pykv
