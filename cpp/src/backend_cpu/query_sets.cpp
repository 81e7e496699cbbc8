#include "backend_cpu/query_sets.h"

#include <algorithm>

#include "backend_cpu/rotary.h"

namespace pykv::cpu {

void Rotations::set(const RopeParams* rope, std::span<const Segment> segments) {
  found_.clear();
  if (rope != nullptr && rope->dims != 0)  // else K does not depend on positions
    for (const Segment& segment : segments)
      if (segment.rotation != 0 && (found_.empty() || found_.back() != segment.rotation))
        found_.push_back(segment.rotation);
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  if (found_.empty()) return values_.clear();
  if (found_ == values_ && rope_ == *rope) return;
  values_.clear();  // if an allocation fails below
  fill_cos_sin(*rope, found_, cos_sin_);
  for (std::size_t at = 0; at < cos_sin_.size(); at += rope->dims)
    for (std::size_t i = rope->dims / 2; i < rope->dims; ++i) cos_sin_[at + i] *= -1.0F;  // sin(-x)
  rope_ = *rope;
  values_ = found_;
}

std::uint32_t Rotations::index(Pos rotation) const {
  if (rotation == 0 || values_.empty()) return kNone;
  const auto found = std::lower_bound(values_.begin(), values_.end(), rotation);
  return static_cast<std::uint32_t>(found - values_.begin()) + 1;
}

void Rotations::turn_back(float* head, std::uint32_t index) const {
  const HeadTurn turn_head(rope_);
  turn_head(head, cos_sin_.data() + std::size_t{index - 1} * rope_.dims);
}

void QueryForm::make(const float* head, float* prepared) const {
  float transformed[kernels::kMaxHeadDim];
  const TileLayout& k = place->k;
  if (k.hadamard != 0) {
    std::copy_n(head, k.dim, transformed);
    kernels->hadamard(transformed, k.hadamard, k.dim / k.hadamard);
    head = transformed;
  }
  prepare({k, place->v, place->v_view_of_k, head, prepared});
}

void QuerySets::begin_call(const QueryForm& form, const Rotations& rotations) {
  form_ = form;
  const std::size_t sets = std::min(rotations.size() - 1, kKept);
  const std::size_t floats = sets * kernels::kQueryBlock * form.floats();
  if (turned_.size() < floats) turned_.resize(floats);
  count_ = 0;
}

void QuerySets::begin_block(std::uint32_t count) {
  count_ = count;
  next_ = 0;
  std::fill(std::begin(indices_), std::end(indices_), kUnused);
}

const float* const* QuerySets::get(const Rotations& rotations, std::uint32_t index) {
  if (index == Rotations::kNone) return prepared_;
  for (std::uint32_t set = 0; set < kKept; ++set)
    if (indices_[set] == index) return sets_[set];
  const std::uint32_t set = next_;
  next_ = (next_ + 1) % kKept;
  indices_[set] = index;
  float head[kernels::kMaxHeadDim];
  for (std::uint32_t i = 0; i < count_; ++i) {
    float* const to = turned_.data() + (std::size_t{set} * kernels::kQueryBlock + i) * form_.floats();
    std::copy_n(heads_[i], form_.place->k.dim, head);
    rotations.turn_back(head, index);
    form_.make(head, to);
    sets_[set][i] = to;
  }
  return sets_[set];
}

}  // namespace pykv::cpu
