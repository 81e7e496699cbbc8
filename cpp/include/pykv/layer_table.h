// Floor 1. The only thing a cache knows about a model: one row of numbers per
// layer. No names, no tensors. What no kernel supports yet is refused by name in
// validate(), at construction, never at the first token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pykv/types.h"

namespace pykv {

enum class WindowKind : std::uint8_t { none, standard, chunked, symmetric };

// How far back a token sees, in positions.
struct Window {
  WindowKind kind = WindowKind::none;
  std::uint32_t size = 0;  // 0 if none
  friend bool operator==(const Window&, const Window&) = default;
};

// The lowest position that a query at `query_pos` sees: the last `size` positions with its own
// (standard), or those from the last multiple of `size` on (chunked).
constexpr Pos first_visible(Pos query_pos, Window window) {
  const std::int64_t query = query_pos;
  const std::int64_t size = window.size;
  if (window.kind == WindowKind::standard) return static_cast<Pos>(query < size ? 0 : query - size + 1);
  if (window.kind == WindowKind::chunked) return static_cast<Pos>(query / size * size);
  return 0;
}

// Whether a query sees a key of its sequence that does not come after it.
constexpr bool visible(Pos key_pos, Pos query_pos, Window window) {
  return key_pos >= first_visible(query_pos, window);
}

struct LayerSpec {
  std::uint32_t pool = 0;                      // layers of a pool see the same tokens: pool 0 all of
                                               // them, another those of its one window
  std::uint32_t kv_heads = 0;                  // 1 … 1024; 0: no K and V, a recurrent layer
  std::uint32_t k_dim = 0;                     // per head, elements
  std::uint32_t v_dim = 0;                     // per head, elements
  bool v_view_of_k = false;                    // V is the first v_dim elements of K (MLA)
  std::optional<std::uint32_t> kv_from_layer;  // reads the KV of an earlier layer of the same
                                               // sizes that stores it; stores none itself
  WindowKind window_kind = WindowKind::none;
  std::uint32_t window_size = 0;  // positions, 0 if none
  std::uint32_t rope_id = 0;      // index into CacheConfig::ropes; unknown if there is none
  bool sinks = false;             // learned attention sinks: attention needs them
  Window window() const { return {window_kind, window_size}; }
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

using LayerTable = std::vector<LayerSpec>;

constexpr bool stores_kv(const LayerSpec& layer) { return layer.kv_heads != 0; }

// Throws InvalidArgument for nonsense (zero or absurd sizes) and Unsupported,
// naming layer and feature, for what no kernel of this build can do. This build:
// k_dim in [8, 576] and v_dim in [8, 512], multiples of 8, no symmetric window.
// Pools are numbered without gaps. Pool 0 keeps all tokens and may have layers of any window;
// the layers of each other pool have one window, and only what it reaches is kept there.
void validate(const LayerTable& layers);

inline constexpr std::uint32_t kMaxPools = 8;
std::uint32_t pool_count(const LayerTable& layers);
// What every layer of `pool` sees; none for pool 0.
Window window_of_pool(const LayerTable& layers, std::uint32_t pool);

// The same layers, those of each window in a pool of their own, beside the layers without one
// in pool 0. Where every layer has a window, and where a layer reads the KV of one with another
// window, all tokens are kept in pool 0.
LayerTable with_window_pools(LayerTable layers);

}  // namespace pykv
