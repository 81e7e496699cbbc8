// Floor 4. A feed-forward layer of experts: a router gives each row its best few, whose outputs
// are added with weights that are the softmax over the chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/decoder_spec.h"
#include "model/dense.h"
#include "model/row_buffer.h"
#include "pykv/backend.h"

namespace pykv {

struct ExpertWeights {
  Dense gate, up, down;
};

struct ExpertLayer {
  Dense router;
  std::vector<ExpertWeights> experts;
};

// One expert of one row.
struct ExpertChoice {
  std::uint32_t expert = 0;
  float weight = 0;
};

// The `count` largest of `scores`, ascending by expert; of equal ones the first. Their weights
// are the softmax over the chosen.
std::vector<ExpertChoice> choose_experts(std::span<const float> scores, std::uint32_t count);

// Runs such layers. Experts are done in ascending order, so that what is added to a row, and in
// which order, depends on the row alone.
class ExpertRunner {
 public:
  ExpertRunner() = default;
  ExpertRunner(std::uint32_t used, std::uint32_t inner, Activation activation)
      : used_(used), inner_(inner), activation_(activation) {}

  // What the experts make of `in` [n, width], in rows that stay valid until the next call.
  Rows run(Backend& backend, const ExpertLayer& layer, Rows in);

 private:
  void reserve(Backend& backend, const ExpertLayer& layer, Rows in);
  void route(Backend& backend, const ExpertLayer& layer, Rows in);
  void run_expert(Backend& backend, const ExpertWeights& expert, Rows in, Rows out);

  std::uint32_t used_ = 0;   // experts of a row
  std::uint32_t inner_ = 0;  // width between up and down
  Activation activation_ = Activation::silu;
  std::uint32_t capacity_ = 0;  // rows
  RowBuffer scores_, in_, gate_, up_, out_, sum_;
  std::vector<float> downloaded_;
  std::vector<std::vector<std::uint32_t>> rows_;  // of each expert
  std::vector<std::vector<float>> weights_;       // likewise
};

}  // namespace pykv
