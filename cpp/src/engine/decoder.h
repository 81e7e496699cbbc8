// Floor 5. What the loop needs of a model: the seam at which tests put a small one.
#pragma once

#include <cstdint>
#include <span>

#include "pykv/model.h"

namespace pykv::engine {

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual std::uint32_t vocab() const = 0;
  virtual std::uint32_t context() const = 0;  // tokens
  // As Model::forward.
  virtual void forward(Step& step, std::span<const Token> tokens, std::span<const std::uint32_t> logit_rows,
                       std::span<float> logits) = 0;
};

class ModelDecoder final : public Decoder {
 public:
  explicit ModelDecoder(Model& model) : model_(model) {}
  std::uint32_t vocab() const override { return model_.config().vocab; }
  std::uint32_t context() const override { return model_.config().context; }
  void forward(Step& step, std::span<const Token> tokens, std::span<const std::uint32_t> logit_rows,
               std::span<float> logits) override {
    model_.forward(step, tokens, logit_rows, logits);
  }

 private:
  Model& model_;
};

}  // namespace pykv::engine
