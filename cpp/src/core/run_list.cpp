#include "pykv/run_list.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "core/run_node.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

CellSpan cells_of(const Run& run) { return {run.cell, run.length}; }

std::string text(const Run& run) {
  return "run of " + std::to_string(run.length) + " tokens at position " + std::to_string(run.first);
}

}  // namespace

std::uint32_t RunList::Node::entries_below(Pos end) const {
  std::uint32_t low = 0, high = count;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (first_of(middle) < end)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void RunList::Node::add_up() {
  sum = sum_of(0);
  for (std::uint32_t i = 1; i < count; ++i) sum = sum + sum_of(i);
}

void RunList::Node::push(const Run& piece) {
  pieces[count++] = piece;
  sum = count == 1 ? summary_of(piece) : sum + summary_of(piece);
}

void RunList::Node::push(Node* child) {
  children[count++] = child;
  sum = count == 1 ? child->sum : sum + child->sum;
}

RunList::RunList(CellMap& cells) : cells_(&cells) {}

RunList::RunList(const RunList& other) : cells_(other.cells_), root_(other.root_) {
  if (root_ != nullptr) ++root_->refs;
}

RunList::RunList(RunList&& other) noexcept
    : cells_(other.cells_), root_(std::exchange(other.root_, nullptr)) {}

RunList& RunList::operator=(RunList other) noexcept {
  std::swap(cells_, other.cells_);
  std::swap(root_, other.root_);
  return *this;
}

RunList::~RunList() {
  try {
    release(root_, *cells_);
  } catch (const IntegrityError&) {
    // The map lost a holder before; its check_integrity() reports it, ending here would not.
  }
}

namespace {

// Asks for the memory of what is read next: leaves lie anywhere in the heap.
template <class Node>
void fetch(const Node& node) {
  constexpr std::size_t kLine = 64;
  const char* const begin = reinterpret_cast<const char*>(&node);
  for (std::size_t at = 0; at < sizeof(Node); at += kLine) __builtin_prefetch(begin + at);
}

}  // namespace

// Recursion is as deep as the tree is high.
void RunList::release(Node* node, CellMap& cells) {
  if (node == nullptr || --node->refs > 0) return;
  const std::unique_ptr<Node> gone(node);
  if (node->is_leaf()) {
    node->for_blocks(0, [&](BlockIndex block, std::uint64_t bits) { cells.drop_holder(block, bits); });
    return;
  }
  for (std::uint32_t i = 0; i < node->count; ++i) {
    if (i + 2U < node->count) fetch(*node->children[i + 2]);
    if (i + 1U < node->count) cells.fetch(node->children[i + 1]->sum.head.cell);
    release(node->children[i], cells);
  }
}

std::uint32_t RunList::tokens() const { return root_ == nullptr ? 0 : root_->sum.tokens; }
std::uint32_t RunList::runs() const { return root_ == nullptr ? 0 : root_->sum.runs; }
Pos RunList::begin() const { return root_ == nullptr ? 0 : root_->sum.head.first; }
Pos RunList::end() const { return root_ == nullptr ? 0 : root_->sum.tail.end(); }

std::optional<Run> RunList::last() const {
  if (root_ == nullptr) return std::nullopt;
  return root_->sum.tail;
}

// The node in `slot`, which is copied first if others point to it too. Everything above
// it must be writable already.
RunList::Node* RunList::writable(Node*& slot) {
  if (slot->refs == 1) return slot;
  auto copy = std::make_unique<Node>(*slot);
  copy->refs = 1;
  if (copy->is_leaf())
    copy->for_blocks(0, [&](BlockIndex block, std::uint64_t bits) { cells_->add_holder(block, bits); });
  else
    for (std::uint32_t i = 0; i < copy->count; ++i) ++copy->children[i]->refs;
  --slot->refs;
  slot = copy.release();
  return slot;
}

void RunList::append(const Run& run, Hold hold) {
  if (run.length == 0) return;
  const Pos old_end = end();
  if (run.first < std::max(old_end - 1, 0))
    throw InvalidArgument("[RunList.append] " + text(run) + " begins before the last position " +
                          std::to_string(old_end - 1) + "; truncate first");
  if (run.length > static_cast<std::uint32_t>(kMaxPos - run.first))
    throw InvalidArgument("[RunList.append] " + text(run) + " passes the last position " +
                          std::to_string(kMaxPos));
  if (hold == Hold::share) cells_->add_holder(cells_of(run));
  Run rest = run;
  try {
    while (rest.length > 0) {
      Run piece = rest;
      piece.length = std::min(rest.length, kBlockCells - rest.cell % kBlockCells);
      append_piece(piece);
      rest = {piece.end(), piece.cell + piece.length, rest.length - piece.length, rest.rotation};
    }
  } catch (...) {
    // What is in the list already goes again, but the holder that came with it stays.
    cells_->add_holder({run.cell, run.length - rest.length});
    truncate(old_end);
    if (hold == Hold::share) cells_->drop_holder(cells_of(run));
    throw;
  }
}

// Makes the last piece longer and changes nothing else: what a growing sequence does nearly
// always.
void RunList::extend_last(std::uint32_t length) {
  for (Node** slot = &root_; !writable(*slot)->is_leaf();) slot = &(*slot)->children[(*slot)->count - 1];
  for (Node* node = root_;; node = node->children[node->count - 1]) {
    node->sum.tokens += length;
    node->sum.tail.length += length;
    if (node->sum.runs == 1) node->sum.head.length += length;
    if (!node->is_leaf()) continue;
    node->pieces[node->count - 1].length += length;
    return;
  }
}

void RunList::append_piece(const Run& piece) {
  if (root_ == nullptr) {
    root_ = new Node(0);
    root_->push(piece);
    return;
  }
  if (continues(root_->sum.tail, piece) && piece.cell % kBlockCells != 0) return extend_last(piece.length);
  Path path = right_edge(0);
  Node& leaf = *path[0];
  const std::uint32_t height = root_->height;
  if (!leaf.is_full()) {
    leaf.pieces[leaf.count++] = piece;
    for (std::uint32_t h = 0; h <= height; ++h) path[h]->sum = path[h]->sum + summary_of(piece);
    return;
  }
  auto fresh = std::make_unique<Node>(0);
  fresh->push(piece);
  hang(*fresh, path);
  static_cast<void>(fresh.release());
}

// Puts `node` behind all others: below the lowest node of the path that has room, with new
// nodes in between, or below a new root. `path` holds the writable right-most nodes above
// it. One reference to `node` passes to the list, unless this throws.
void RunList::hang(Node& node, Path& path) {
  const std::uint32_t height = root_->height;
  std::array<std::unique_ptr<Node>, kMaxHeight + 1> made;  // all made before any is linked
  std::uint32_t top = node.height + 1U;
  for (; top <= height && path[top]->is_full(); ++top) made[top] = std::make_unique<Node>(top);
  if (top > height) made[top] = std::make_unique<Node>(top);
  Node* below = &node;
  for (std::uint32_t h = node.height + 1U; h < top; ++h) {
    made[h]->push(below);
    below = made[h].release();
  }
  if (top > height) {
    made[top]->push(root_);
    root_ = path[top] = made[top].release();
  }
  path[top]->push(below);
  for (std::uint32_t h = top + 1; h <= height; ++h) path[h]->sum = path[h]->sum + node.sum;
}

// The right-most nodes down to height `lowest`, writable.
RunList::Path RunList::right_edge(std::uint32_t lowest) {
  Path path{};
  Node** slot = &root_;
  for (Node* node = writable(*slot);; node = writable(*slot)) {
    path[node->height] = node;
    if (node->height == lowest) return path;
    slot = &node->children[node->count - 1];
  }
}

void RunList::truncate(Pos new_end) {
  if (new_end < 0)
    throw InvalidArgument("[RunList.truncate] end " + std::to_string(new_end) + " is negative");
  if (new_end >= end()) return;
  if (new_end <= begin()) {
    release(std::exchange(root_, nullptr), *cells_);
    return;
  }
  cut(root_, new_end);
  collapse();
}

// A root with a single child gives way to it. The root must be writable.
void RunList::collapse() {
  while (!root_->is_leaf() && root_->count == 1) {
    const std::unique_ptr<Node> old(root_);
    root_ = old->children[0];
  }
}

// Removes positions >= end below `slot`, some of which stay and some go. Copies are made
// on the way down, changes on the way up.
void RunList::cut(Node*& slot, Pos new_end) {
  Node& node = *writable(slot);
  const std::uint32_t keep = node.entries_below(new_end);
  if (!node.is_leaf() && node.children[keep - 1]->sum.tail.end() > new_end)
    cut(node.children[keep - 1], new_end);
  if (!node.is_leaf()) {
    while (node.count > keep) release(node.children[--node.count], *cells_);
  } else {
    node.for_blocks(keep, [&](BlockIndex block, std::uint64_t bits) { cells_->drop_holder(block, bits); });
    node.count = static_cast<std::uint16_t>(keep);
    Run& last = node.pieces[keep - 1];
    const auto stays = static_cast<std::uint32_t>(std::min(last.end(), new_end) - last.first);
    cells_->drop_holder({last.cell + stays, last.length - stays});
    last.length = stays;
  }
  node.add_up();
}

}  // namespace pykv
