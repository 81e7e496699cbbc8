// The cells of one node.
#include <algorithm>
#include <utility>

#include "core/prefix_tree_nodes.h"

namespace pykv {
namespace {

CellSpan without_front(CellSpan span, std::uint32_t cells) {
  return {span.begin + cells, span.length - cells};
}

}  // namespace

void CellStretch::append(CellSpan span) {
  if (spans_.size() > 0 && spans_.view().back().begin + spans_.view().back().length == span.begin)
    spans_.view().back().length += span.length;
  else
    spans_.append({&span, 1});
}

CellSpan CellStretch::pop(std::uint32_t most) {
  CellSpan& last = spans_.view().back();
  const std::uint32_t length = std::min(most, last.length);
  last.length -= length;
  const CellSpan popped{last.begin + last.length, length};
  if (last.length == 0) spans_.drop_back(1);
  return popped;
}

CellStretch::Cut CellStretch::cut_at(std::uint32_t count, std::uint32_t size) const {
  const std::span<const CellSpan> spans = spans_.view();
  Cut cut;
  if (count <= size / 2) {
    while (cut.span < spans.size() && spans[cut.span].length <= count) count -= spans[cut.span++].length;
    cut.inside = count;
  } else {
    std::uint32_t behind = size - count;
    cut.span = spans.size();
    while (behind > 0 && spans[cut.span - 1].length <= behind) behind -= spans[--cut.span].length;
    if (behind > 0) cut.inside = spans[--cut.span].length - behind;
  }
  cut.front_is_shorter = cut.span < spans.size() / 2;
  if (cut.front_is_shorter) {
    cut.shorter.reserve_back(cut.span + 1);
    cut.shorter.append(spans.first(cut.span));
    const CellSpan last{spans[cut.span].begin, cut.inside};
    if (cut.inside > 0) cut.shorter.append({&last, 1});
  } else {
    cut.shorter.append(spans.subspan(cut.span));
    if (cut.inside > 0) cut.shorter.view().front() = without_front(spans[cut.span], cut.inside);
  }
  return cut;
}

CellStretch CellStretch::take_front(Cut cut) noexcept {
  CellStretch front;
  if (cut.front_is_shorter) {
    spans_.drop_front(cut.span);
    if (cut.inside > 0) spans_.view().front() = without_front(spans_.view().front(), cut.inside);
    front.spans_ = std::move(cut.shorter);
  } else {
    spans_.drop_back(spans_.size() - cut.span - (cut.inside > 0 ? 1 : 0));
    if (cut.inside > 0) spans_.view().back().length = cut.inside;
    front.spans_ = std::exchange(spans_, std::move(cut.shorter));
  }
  return front;
}

void CellStretch::join(CellStretch&& front) noexcept {
  if (spans_.size() > 0 && front.spans_.size() > 0) {
    CellSpan& last = front.spans_.view().back();
    CellSpan& first = spans_.view().front();
    // The part that is copied gives its span up, so that the room in the other one stays.
    if (last.begin + last.length == first.begin && front.spans_.size() < spans_.size()) {
      first = {last.begin, last.length + first.length};
      front.spans_.drop_back(1);
    } else if (last.begin + last.length == first.begin) {
      last.length += first.length;
      spans_.drop_front(1);
    }
  }
  spans_.join(std::move(front.spans_));
}

}  // namespace pykv
