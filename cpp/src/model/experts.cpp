#include "model/experts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

namespace pykv {

std::vector<ExpertChoice> choose_experts(std::span<const float> scores, std::uint32_t count) {
  std::vector<std::uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0U);
  // NaN counts as the lowest, so that the order is one.
  const auto value = [&](std::uint32_t i) { return std::isnan(scores[i]) ? -INFINITY : scores[i]; };
  const auto better = [&](std::uint32_t a, std::uint32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), better);
  order.resize(count);
  const float most = scores[order.front()];
  std::sort(order.begin(), order.end());
  std::vector<ExpertChoice> chosen;
  float total = 0;
  for (const std::uint32_t expert : order) {
    chosen.push_back({expert, std::exp(scores[expert] - most)});
    total += chosen.back().weight;
  }
  for (ExpertChoice& choice : chosen) choice.weight /= total;
  return chosen;
}

Rows ExpertRunner::run(Backend& backend, const ExpertLayer& layer, Rows in) {
  reserve(backend, layer, in);
  route(backend, layer, in);
  const Rows sum = sum_.rows(in.count);
  backend.fill(sum, 0.0F);
  for (std::size_t i = 0; i < layer.experts.size(); ++i) {
    if (rows_[i].empty()) continue;
    const auto count = static_cast<std::uint32_t>(rows_[i].size());
    backend.gather(in, rows_[i], in_.rows(count));
    run_expert(backend, layer.experts[i], in_.rows(count), out_.rows(count));
    backend.scatter_add(out_.rows(count), rows_[i], weights_[i], sum);
  }
  return sum;
}

// Scratch; grows in powers of two and is kept.
void ExpertRunner::reserve(Backend& backend, const ExpertLayer& layer, Rows in) {
  if (in.count <= capacity_) return;
  const std::uint32_t rows = std::bit_ceil(std::max(in.count, 16U));
  capacity_ = 0;  // until all of them exist
  scores_ = RowBuffer(backend, rows, static_cast<std::uint32_t>(layer.experts.size()));
  in_ = RowBuffer(backend, rows, in.width);
  gate_ = RowBuffer(backend, rows, inner_);
  up_ = RowBuffer(backend, rows, inner_);
  out_ = RowBuffer(backend, rows, in.width);
  sum_ = RowBuffer(backend, rows, in.width);
  capacity_ = rows;
}

void ExpertRunner::route(Backend& backend, const ExpertLayer& layer, Rows in) {
  const std::size_t experts = layer.experts.size();
  const Rows scores = scores_.rows(in.count);
  apply(backend, layer.router, in, scores);
  downloaded_.resize(in.count * experts);
  backend.download(scores, downloaded_);
  rows_.assign(experts, {});
  weights_.assign(experts, {});
  for (std::uint32_t row = 0; row < in.count; ++row)
    for (const ExpertChoice& choice :
         choose_experts(std::span(downloaded_).subspan(row * experts, experts), used_)) {
      rows_[choice.expert].push_back(row);
      weights_[choice.expert].push_back(choice.weight);
    }
}

void ExpertRunner::run_expert(Backend& backend, const ExpertWeights& expert, Rows in, Rows out) {
  const Rows gate = gate_.rows(in.count), up = up_.rows(in.count);
  apply(backend, std::array{&expert.gate, &expert.up}, in, std::array{gate, up});
  activate(backend, activation_, gate, up);
  apply(backend, expert.down, gate, out);
}

}  // namespace pykv
