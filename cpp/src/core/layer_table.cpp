#include "pykv/layer_table.h"

#include <algorithm>
#include <string>

#include "pykv/errors.h"

namespace pykv {
namespace {

constexpr std::size_t kMaxLayers = 4096;
constexpr std::uint32_t kMaxKvHeads = 1024;
constexpr std::uint32_t kMaxSaneDim = 65536;  // more is nonsense, not merely unsupported
constexpr std::uint32_t kMinDim = 8;
constexpr std::uint32_t kMaxKDim = 576;
constexpr std::uint32_t kMaxVDim = 512;
constexpr std::uint32_t kDimMultiple = 8;

std::string where(std::size_t layer) { return "[Cache] layer " + std::to_string(layer) + ": "; }

void check_range(std::size_t layer, const char* field, std::uint32_t value, std::uint32_t limit) {
  if (value >= 1 && value <= limit) return;
  throw InvalidArgument(where(layer) + field + " is " + std::to_string(value) + ", must be 1 to " +
                        std::to_string(limit));
}

void check_dim(std::size_t layer, const char* field, std::uint32_t dim, std::uint32_t limit) {
  check_range(layer, field, dim, kMaxSaneDim);
  if (dim >= kMinDim && dim <= limit && dim % kDimMultiple == 0) return;
  throw Unsupported(where(layer) + field + " is " + std::to_string(dim) + "; this build has kernels for " +
                    "multiples of 8 from 8 to " + std::to_string(limit));
}

[[noreturn]] void unsupported(std::size_t layer, const char* feature) {
  throw Unsupported(
      where(layer) + feature +
      " is not supported by this build; it has full attention, and standard and chunked windows");
}

// A borrowed place must be one that is stored, and of the same shape.
void check_borrowed(std::size_t i, const LayerTable& layers) {
  const LayerSpec& layer = layers[i];
  if (!layer.kv_from_layer) return;
  const std::string from = "kv_from_layer is " + std::to_string(*layer.kv_from_layer);
  if (*layer.kv_from_layer >= i) throw InvalidArgument(where(i) + from + ", must be an earlier layer");
  const LayerSpec& source = layers[*layer.kv_from_layer];
  if (source.kv_from_layer)
    throw InvalidArgument(where(i) + from + ", which stores no KV; name layer " +
                          std::to_string(*source.kv_from_layer) + ", from which that one takes it");
  if (source.pool != layer.pool || source.kv_heads != layer.kv_heads || source.k_dim != layer.k_dim ||
      source.v_dim != layer.v_dim || source.v_view_of_k != layer.v_view_of_k)
    throw InvalidArgument(where(i) + from +
                          "; both must have the same pool, kv_heads, k_dim, v_dim and v_view_of_k");
}

void check_sane(std::size_t i, const LayerSpec& layer) {
  if (!stores_kv(layer)) {
    if (layer != LayerSpec{})
      throw InvalidArgument(where(i) +
                            "kv_heads is 0; the other fields of a layer without K and V stay at "
                            "their defaults");
    return;
  }
  check_range(i, "kv_heads", layer.kv_heads, kMaxKvHeads);
  if (layer.v_view_of_k && layer.v_dim > layer.k_dim) {
    throw InvalidArgument(where(i) + "v_dim " + std::to_string(layer.v_dim) + " of a view exceeds k_dim " +
                          std::to_string(layer.k_dim));
  }
  if ((layer.window_kind == WindowKind::none) != (layer.window_size == 0)) {
    throw InvalidArgument(where(i) + "window_size is " + std::to_string(layer.window_size) +
                          "; it must be 0 without a window and at least 1 with one");
  }
}

void check_supported(std::size_t i, const LayerSpec& layer) {
  if (layer.window_kind == WindowKind::symmetric) unsupported(i, "a symmetric window");
}

void check_pools(const LayerTable& layers) {
  std::vector<const LayerSpec*> first(kMaxPools);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::uint32_t pool = layers[i].pool;
    if (pool >= kMaxPools)
      throw InvalidArgument(where(i) + "pool is " + std::to_string(pool) + ", must be 0 to " +
                            std::to_string(kMaxPools - 1));
    if (pool != 0 && layers[i].window_kind == WindowKind::none)
      throw InvalidArgument(where(i) + "pool " + std::to_string(pool) +
                            " keeps what a window reaches and the layer has none; put it into pool 0");
    if (first[pool] == nullptr) first[pool] = &layers[i];
    if (pool != 0 && first[pool]->window() != layers[i].window())
      throw InvalidArgument(where(i) + "pool " + std::to_string(pool) +
                            " has layers of another window; give each window a pool of its own, or put the "
                            "layer into pool 0");
  }
  for (std::uint32_t pool = 0; pool < pool_count(layers); ++pool)
    if (first[pool] == nullptr)
      throw InvalidArgument("[Cache] pool " + std::to_string(pool) + " has no layer; number pools from 0 on");
}

}  // namespace

std::uint32_t pool_count(const LayerTable& layers) {
  std::uint32_t last = 0;
  for (const LayerSpec& layer : layers) last = std::max(last, layer.pool);
  return last + 1;
}

Window window_of_pool(const LayerTable& layers, std::uint32_t pool) {
  for (const LayerSpec& layer : layers)
    if (pool != 0 && layer.pool == pool) return layer.window();
  return {};
}

LayerTable with_window_pools(LayerTable layers) {
  std::vector<Window> windows(1);  // of each pool
  const bool has_full = std::any_of(layers.begin(), layers.end(), [](const LayerSpec& layer) {
    return stores_kv(layer) && layer.window_kind == WindowKind::none;
  });
  std::vector<bool> keeps_all(layers.size(), !has_full);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto from = layers[i].kv_from_layer;
    if (!from || *from >= i || layers[*from].window() == layers[i].window()) continue;
    keeps_all[*from] = true;
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerSpec& layer = layers[i];
    layer.pool = 0;
    const auto from = layer.kv_from_layer;
    if (layer.window_kind == WindowKind::none || keeps_all[from && *from < i ? *from : i]) continue;
    const auto at = std::find(windows.begin() + 1, windows.end(), layer.window());
    if (at == windows.end() && windows.size() == kMaxPools) continue;
    layer.pool = static_cast<std::uint32_t>(at - windows.begin());
    if (at == windows.end()) windows.push_back(layer.window());
  }
  return layers;
}

void validate(const LayerTable& layers) {
  if (layers.empty() || layers.size() > kMaxLayers) {
    throw InvalidArgument("[Cache] " + std::to_string(layers.size()) + " layers; must be 1 to " +
                          std::to_string(kMaxLayers));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    check_sane(i, layers[i]);
    if (!stores_kv(layers[i])) continue;
    check_supported(i, layers[i]);
    check_dim(i, "k_dim", layers[i].k_dim, kMaxKDim);
    check_dim(i, "v_dim", layers[i].v_dim, kMaxVDim);
    check_borrowed(i, layers);
  }
  check_pools(layers);
}

}  // namespace pykv
