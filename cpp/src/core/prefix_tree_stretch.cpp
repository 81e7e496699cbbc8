// The tokens and cells of one node.
#include <algorithm>
#include <utility>

#include "core/prefix_tree_nodes.h"

namespace pykv {

void TokenStretch::truncate(std::uint32_t size) noexcept {
  tokens_.resize(skipped_ + size);
  if (tokens_.size() < tokens_.capacity() / 4) tokens_.shrink_to_fit();
}

TokenStretch TokenStretch::shorter_half(std::uint32_t count) const {
  TokenStretch half;
  half.append(is_front_shorter(count) ? view().first(count) : view().subspan(count));
  return half;
}

TokenStretch TokenStretch::take_front(std::uint32_t count, TokenStretch shorter_half) noexcept {
  if (!is_front_shorter(count)) {
    truncate(count);
    return std::exchange(*this, std::move(shorter_half));
  }
  skipped_ += count;
  if (skipped_ > tokens_.size() / 2) {
    tokens_.erase(tokens_.begin(), tokens_.begin() + skipped_);
    skipped_ = 0;
  }
  return shorter_half;
}

void CellStretch::reserve_more(std::size_t spans) {
  const std::size_t size = spans_.size() + spans;
  if (size > spans_.capacity()) spans_.reserve(std::max(size, 2 * spans_.size()));
}

void CellStretch::append(CellSpan span) {
  if (!spans_.empty() && spans_.back().begin + spans_.back().length == span.begin)
    spans_.back().length += span.length;
  else
    spans_.push_back(span);
}

CellSpan CellStretch::pop(std::uint32_t most) {
  CellSpan& last = spans_.back();
  const std::uint32_t length = std::min(most, last.length);
  last.length -= length;
  const CellSpan popped{last.begin + last.length, length};
  if (last.length == 0) spans_.pop_back();
  if (spans_.size() < spans_.capacity() / 4) spans_.shrink_to_fit();
  return popped;
}

CellStretch::Cut CellStretch::cut_at(std::uint32_t count, std::uint32_t size) const {
  Cut cut;
  if (count <= size / 2) {
    while (cut.span < spans_.size() && spans_[cut.span].length <= count) count -= spans_[cut.span++].length;
    cut.inside = count;
  } else {
    std::uint32_t behind = size - count;
    cut.span = spans_.size();
    while (behind > 0 && spans_[cut.span - 1].length <= behind) behind -= spans_[--cut.span].length;
    if (behind > 0) cut.inside = spans_[--cut.span].length - behind;
  }
  const auto at = spans_.begin() + static_cast<std::ptrdiff_t>(cut.span);
  cut.front_is_shorter = cut.span < spans_.size() / 2;
  if (cut.front_is_shorter) {
    cut.shorter.reserve(cut.span + 1);
    cut.shorter.assign(spans_.begin(), at);
    if (cut.inside > 0) cut.shorter.push_back({at->begin, cut.inside});
  } else {
    cut.shorter.assign(at, spans_.end());
    if (cut.inside > 0) cut.shorter.front() = {at->begin + cut.inside, at->length - cut.inside};
  }
  return cut;
}

CellStretch CellStretch::take_front(Cut cut) noexcept {
  CellStretch front;
  const auto at = spans_.begin() + static_cast<std::ptrdiff_t>(cut.span);
  if (cut.front_is_shorter) {
    if (cut.inside > 0) *at = {at->begin + cut.inside, at->length - cut.inside};
    spans_.erase(spans_.begin(), at);
    front.spans_ = std::move(cut.shorter);
  } else {
    if (cut.inside > 0) at->length = cut.inside;
    spans_.resize(cut.span + (cut.inside > 0 ? 1 : 0));
    front.spans_ = std::exchange(spans_, std::move(cut.shorter));
  }
  return front;
}

}  // namespace pykv
