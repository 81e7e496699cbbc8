#include "model/architecture.h"

#include <array>
#include <string>

#include "model/printable.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

const std::array<const Architecture*, 1> kArchitectures{&kLlama};

}  // namespace

const Architecture& find_architecture(const GgufFile& file) {
  const std::string name = file.string_value("general.architecture");
  std::string supported;
  for (const Architecture* architecture : kArchitectures) {
    if (name == architecture->name) return *architecture;
    supported += (supported.empty() ? "" : ", ") + std::string(architecture->name);
  }
  throw UnsupportedModel("[Model.load] " + printable(file.path(), 4096) + " has architecture " +
                         printable(name) + ", supported are: " + supported + "; use a model of one of these");
}

ModelConfig read_model_config(const GgufFile& file) { return find_architecture(file).read_config(file); }

LayerTable layer_table(const ModelConfig& config) {
  LayerSpec layer;
  layer.kv_heads = config.kv_heads;
  layer.k_dim = config.head_dim;
  layer.v_dim = config.head_dim;
  return LayerTable(config.layers, layer);
}

std::vector<RopeParams> ropes(const ModelConfig& config) { return {config.rope}; }

}  // namespace pykv
