#include "pykv/layer_table.h"

#include <string>

#include "pykv/errors.h"

namespace pykv {
namespace {

constexpr std::size_t kMaxLayers = 4096;
constexpr std::uint32_t kMaxKvHeads = 1024;
constexpr std::uint32_t kMaxSaneDim = 65536;  // more is nonsense, not merely unsupported
constexpr std::uint32_t kMinDim = 8;
constexpr std::uint32_t kMaxDim = 256;
constexpr std::uint32_t kDimMultiple = 8;

std::string where(std::size_t layer) { return "[validate] layer " + std::to_string(layer) + ": "; }

void check_range(std::size_t layer, const char* field, std::uint32_t value, std::uint32_t limit) {
  if (value >= 1 && value <= limit) return;
  throw InvalidArgument(where(layer) + field + " is " + std::to_string(value) + ", must be 1 to " +
                        std::to_string(limit));
}

void check_dim(std::size_t layer, const char* field, std::uint32_t dim) {
  check_range(layer, field, dim, kMaxSaneDim);
  if (dim >= kMinDim && dim <= kMaxDim && dim % kDimMultiple == 0) return;
  throw Unsupported(where(layer) + field + " is " + std::to_string(dim) + "; this build has kernels for " +
                    "multiples of 8 from 8 to 256");
}

[[noreturn]] void unsupported(std::size_t layer, const char* feature) {
  throw Unsupported(where(layer) + feature +
                    " is not supported by this build; it has full attention over "
                    "one pool, each layer with its own K and V");
}

void check_sane(std::size_t i, const LayerSpec& layer) {
  check_range(i, "kv_heads", layer.kv_heads, kMaxKvHeads);
  if (layer.kv_from_layer && *layer.kv_from_layer >= i) {
    throw InvalidArgument(where(i) + "kv_from_layer is " + std::to_string(*layer.kv_from_layer) +
                          ", must be an earlier layer");
  }
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
  if (layer.pool != 0) unsupported(i, "a second pool");
  if (layer.v_view_of_k) unsupported(i, "v_view_of_k");
  if (layer.kv_from_layer) unsupported(i, "kv_from_layer");
  if (layer.window_kind != WindowKind::none) unsupported(i, "a window");
  if (layer.sinks) unsupported(i, "sinks");
}

}  // namespace

void validate(const LayerTable& layers) {
  if (layers.empty() || layers.size() > kMaxLayers) {
    throw InvalidArgument("[validate] " + std::to_string(layers.size()) + " layers; must be 1 to " +
                          std::to_string(kMaxLayers));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    check_sane(i, layers[i]);
    check_supported(i, layers[i]);
    check_dim(i, "k_dim", layers[i].k_dim);
    check_dim(i, "v_dim", layers[i].v_dim);
  }
}

}  // namespace pykv
