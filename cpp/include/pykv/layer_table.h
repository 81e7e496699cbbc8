// Floor 1. The only thing a cache knows about a model: one row of numbers per
// layer. No names, no tensors. What no kernel supports yet is refused by name in
// validate(), at construction, never at the first token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace pykv {

enum class WindowKind : std::uint8_t { none, standard, chunked, symmetric };

struct LayerSpec {
  std::uint32_t pool = 0;                      // layers with the same pool see the same tokens
  std::uint32_t kv_heads = 0;                  // 1 … 1024
  std::uint32_t k_dim = 0;                     // per head, elements
  std::uint32_t v_dim = 0;                     // per head, elements
  bool v_view_of_k = false;                    // V is the first v_dim elements of K (MLA)
  std::optional<std::uint32_t> kv_from_layer;  // reads another layer's KV, stores none
  WindowKind window_kind = WindowKind::none;
  std::uint32_t window_size = 0;  // positions, 0 if none
  std::uint32_t rope_id = 0;      // layers with equal rotary parameters share an id
  bool sinks = false;             // learned attention sinks
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

using LayerTable = std::vector<LayerSpec>;

// Throws InvalidArgument for nonsense (zero or absurd sizes) and Unsupported,
// naming layer and feature, for what no kernel of this build can do. This build:
// one pool, full attention, k_dim and v_dim in [8, 256] and multiples of 8,
// no view, no borrowed KV, no window, no sinks.
void validate(const LayerTable& layers);

}  // namespace pykv
