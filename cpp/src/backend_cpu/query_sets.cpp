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

void QuerySets::prepare(const kernels::Kernels& kernels, const Rotations& rotations, const TileLayout& k) {
  kernels_ = &kernels;
  head_dim_ = k.dim;
  hadamard_ = k.hadamard;
  const std::uint32_t copied = hadamard_ != 0 ? rotations.size() : rotations.size() - 1;
  const std::size_t floats = std::size_t{std::min(copied, kKept)} * kernels::kQueryBlock * head_dim_;
  if (heads_.size() < floats) heads_.resize(floats);
  count_ = 0;
}

const float** QuerySets::plain(std::uint32_t count) {
  count_ = count;
  next_ = 0;
  std::fill(std::begin(indices_), std::end(indices_), kUnused);
  return plain_;
}

const float* const* QuerySets::get(const Rotations& rotations, std::uint32_t index) {
  if (index == Rotations::kNone && hadamard_ == 0) return plain_;
  for (std::uint32_t set = 0; set < kKept; ++set)
    if (indices_[set] == index) return sets_[set];
  const std::uint32_t set = next_;
  next_ = (next_ + 1) % kKept;
  indices_[set] = index;
  for (std::uint32_t i = 0; i < count_; ++i) {
    float* const head = heads_.data() + (std::size_t{set} * kernels::kQueryBlock + i) * head_dim_;
    std::copy_n(plain_[i], head_dim_, head);
    if (index != Rotations::kNone) rotations.turn_back(head, index);
    if (hadamard_ != 0) kernels_->hadamard(head, hadamard_, head_dim_ / hadamard_);
    sets_[set][i] = head;
  }
  return sets_[set];
}

}  // namespace pykv::cpu
