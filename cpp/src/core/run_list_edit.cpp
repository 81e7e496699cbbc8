// Changes of a RunList that are not at its end: stretches of other lists, removal, shift.
// All work on a copy, which costs one pointer and shares what does not change.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "core/run_node.h"
#include "pykv/errors.h"
#include "pykv/run_list.h"

namespace pykv {
namespace {

template <class Entry, class Count>
void move_front(Entry* to, Count& to_count, Entry* from, Count& from_count, std::uint32_t moved) {
  std::copy_n(from, moved, to + to_count);
  std::copy(from + moved, from + from_count, from);
  to_count = static_cast<Count>(to_count + moved);
  from_count = static_cast<Count>(from_count - moved);
}

template <class Entry, class Count>
void move_back(Entry* to, Count& to_count, Entry* from, Count& from_count, std::uint32_t moved) {
  std::copy_backward(to, to + to_count, to + to_count + moved);
  std::copy_n(from + from_count - moved, moved, to);
  to_count = static_cast<Count>(to_count + moved);
  from_count = static_cast<Count>(from_count - moved);
}

}  // namespace

void RunList::Node::take_front(Node& next, std::uint32_t moved) {
  if (is_leaf())
    move_front(pieces, count, next.pieces, next.count, moved);
  else
    move_front(children, count, next.children, next.count, moved);
}

void RunList::Node::take_back(Node& previous, std::uint32_t moved) {
  if (is_leaf())
    move_back(pieces, count, previous.pieces, previous.count, moved);
  else
    move_back(children, count, previous.children, previous.count, moved);
}

// The sum after the first `tokens` below have gone.
void RunList::Node::lose_front(std::uint32_t tokens) {
  if (tokens >= sum.head.length) return add_up();
  sum.tokens -= tokens;
  sum.head.first += static_cast<Pos>(tokens);
  sum.head.cell += tokens;
  sum.head.length -= tokens;
  if (sum.runs == 1) sum.tail = sum.head;
}

// The last two children become one, or two that are not thin, unless they are so already.
void RunList::even_out_last(Node& parent) {
  Node*& left_slot = parent.children[parent.count - 2];
  Node*& right_slot = parent.children[parent.count - 1];
  if (!left_slot->is_thin() && !right_slot->is_thin()) return;
  Node& left = *writable(left_slot);
  Node& right = *writable(right_slot);
  const std::uint32_t total = std::uint32_t{left.count} + right.count;
  if (total <= Node::kFanout) {
    left.take_front(right, right.count);
    left.add_up();
    --parent.count;
    delete &right;
    return;
  }
  if (left.count < total / 2)
    left.take_front(right, total / 2 - left.count);
  else
    right.take_back(left, left.count - total / 2);
  left.add_up();
  right.add_up();
}

// Makes every node but the root at least half full, so that others can follow. Goes down:
// a thin node gets a sibling when the one above it is evened out.
void RunList::tidy_right_edge() {
  Node** slot = &root_;
  while (!(*slot)->is_leaf()) {
    Node& node = *writable(*slot);
    if (node.count > 1) even_out_last(node);
    if (node.count == 1)
      collapse();  // only the root can have a single child here
    else
      slot = &node.children[node.count - 1];
  }
}

// Appends everything below `node`, which stays shared with the lists that have it.
void RunList::append_node(Node& node) {
  if (root_ != nullptr) tidy_right_edge();
  if (root_ == nullptr) {
    ++node.refs;
    root_ = &node;
  } else if (node.height > root_->height) {
    for (std::uint32_t i = 0; i < node.count; ++i) append_node(*node.children[i]);
  } else {
    const bool is_beside_root = node.height == root_->height;
    Path path = is_beside_root ? Path{} : right_edge(node.height + 1U);
    hang(node, path);
    ++node.refs;
    if (!is_beside_root) return;
    even_out_last(*root_);
    collapse();
  }
}

void RunList::append_below(const Node& node, Span span) {
  const std::uint32_t low = node.entries_below(span.begin);
  for (std::uint32_t i = low > 0 ? low - 1 : 0; i < node.count; ++i) {
    const RunSummary sum = node.sum_of(i);
    if (sum.head.first >= span.end) return;
    if (sum.tail.end() <= span.begin) continue;
    if (node.is_leaf())
      append(clipped(node.pieces[i], span), Hold::share);
    else if (sum.head.first >= span.begin && sum.tail.end() <= span.end)
      append_node(*node.children[i]);
    else
      append_below(*node.children[i], span);
  }
}

// What `from` has in `span` must lie behind the end. May leave a part of it behind if it throws.
void RunList::append(const RunList& from, Span span) {
  if (from.root_ == nullptr || span.begin >= span.end) return;
  if (span.begin <= from.begin() && span.end >= from.end())
    append_node(*from.root_);
  else
    append_below(*from.root_, span);
}

void RunList::own(Span span) {
  if (root_ != nullptr) own_below(root_, span);
}

void RunList::own_below(Node*& slot, Span span) {
  Node& node = *writable(slot);
  for (std::uint32_t i = 0; !node.is_leaf() && i < node.count; ++i) {
    const RunSummary& sum = node.children[i]->sum;
    if (sum.head.first < span.end && sum.tail.end() > span.begin) own_below(node.children[i], span);
  }
}

void RunList::insert(const RunList& from, Span span) {
  const std::optional<Pos> first = from.next(span.begin);
  if (!first || *first >= span.end) return;
  RunList joined(*this);
  joined.truncate(*first);
  Pos reached = *first;  // all own tokens below are in
  const auto add = [&](Span part) {
    if (const auto own = next(part.begin); own && *own < part.end)
      throw InvalidArgument("[RunList.insert] the list has position " + std::to_string(*own) +
                            " already; remove it first");
    joined.append(*this, {reached, part.begin});
    joined.append(from, part);
    reached = part.end;
  };
  const Span whole{*first, *from.previous(span.end) + 1};
  if (next(whole.begin).value_or(kMaxPos) >= whole.end)
    add(whole);
  else
    from.for_each(span, [&](const Run& run) {
      if (run.end() > reached) add({std::max(run.first, reached), run.end()});
    });
  joined.append(*this, {reached, kMaxPos});
  *this = std::move(joined);
}

void RunList::remove(Span span) {
  if (span.begin >= span.end) return;
  RunList rest(*this);
  rest.truncate(span.begin);
  rest.append(*this, {span.end, kMaxPos});
  *this = std::move(rest);
}

void RunList::remove_front(Pos new_begin) {
  if (new_begin <= begin() || root_ == nullptr) return;
  if (new_begin >= end() || !shrink_first(new_begin)) remove({begin(), new_begin});
}

// What remove_front() does if all of it is in the first leaf and enough of that stays; else false.
bool RunList::shrink_first(Pos new_begin) {
  const Node* leaf = root_;
  for (; !leaf->is_leaf(); leaf = leaf->children[0])
    if (leaf->children[0]->sum.tail.end() <= new_begin) return false;
  std::uint32_t gone = 0;  // pieces
  while (leaf->pieces[gone].end() <= new_begin) ++gone;
  if (leaf != root_ && leaf->count - gone < Node::kFanout / 2) return false;

  Path path{};
  for (Node** slot = &root_;; slot = &(*slot)->children[0]) {
    Node* node = path[(*slot)->height] = writable(*slot);
    if (node->is_leaf()) break;
  }
  Node& first = *path[0];
  std::uint32_t tokens = 0;
  for (std::uint32_t i = 0; i < gone; ++i) {
    cells_->drop_holder({first.pieces[i].cell, first.pieces[i].length});
    tokens += first.pieces[i].length;
  }
  std::copy(first.pieces + gone, first.pieces + first.count, first.pieces);
  first.count = static_cast<std::uint16_t>(first.count - gone);
  Run& piece = first.pieces[0];
  if (piece.first < new_begin) {
    const Run rest = clipped(piece, {new_begin, piece.end()});
    cells_->drop_holder({piece.cell, piece.length - rest.length});
    tokens += piece.length - rest.length;
    piece = rest;
  }
  for (std::uint32_t h = 0; h <= root_->height; ++h) path[h]->lose_front(tokens);
  return true;
}

RunList::ShiftRoom RunList::shift_room(Span span) const {
  const std::optional<Pos> first = next(span.begin), last = previous(span.end);
  if (!first || !last || *first > *last) return {};
  return {previous(span.begin).value_or(-1) + 1 - *first, next(span.end).value_or(kMaxPos) - 1 - *last};
}

void RunList::shift(Span span, Pos delta, Pos rotation) {
  const ShiftRoom room = shift_room(span);
  if (!room.has(delta))
    throw InvalidArgument("[RunList.shift] the tokens can move by " + std::to_string(room.lowest) + " to " +
                          std::to_string(room.highest) + ", not by " + std::to_string(delta));
  RunList moved(*this);
  moved.truncate(span.begin);
  for_each(span, [&](const Run& run) {
    moved.append({run.first + delta, run.cell, run.length, run.rotation + rotation}, Hold::share);
  });
  moved.append(*this, {span.end, kMaxPos});
  *this = std::move(moved);
}

}  // namespace pykv
