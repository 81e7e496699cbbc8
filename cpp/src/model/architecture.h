// Floor 4. What a model architecture provides. One small file each; the table in
// architecture.cpp names them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "pykv/model.h"

namespace pykv {

// Layers and weights of one loaded model.
class Network {
 public:
  virtual ~Network() = default;

  // Runs all layers for the rows of `step` and leaves the last layer's output, before the
  // final norm, in the returned rows, which stay valid until the next call.
  virtual Rows run_layers(Step& step, std::span<const Token> tokens) = 0;
  // Final norm and output matrix: x [n, width] -> logits [n, vocab]. May overwrite x.
  virtual void head(Rows x, Rows logits) = 0;

  virtual std::uint64_t parameters() const = 0;
};

struct Architecture {
  const char* name;  // general.architecture
  ModelConfig (*read_config)(const GgufFile& file);
  std::unique_ptr<Network> (*load)(const GgufFile& file, const ModelConfig& config, Backend& backend);
};

// Throws UnsupportedModel naming the architecture and the supported ones.
const Architecture& find_architecture(const GgufFile& file);

extern const Architecture kLlama;

}  // namespace pykv
