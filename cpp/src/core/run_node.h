// Floor 1, internal. Nodes of a RunList and what they sum up to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/cell_bits.h"
#include "pykv/run_list.h"

namespace pykv {

// What a stretch of a list amounts to. Summaries of neighbours add up with operator+,
// so that questions about runs need not look at pieces.
struct RunSummary {
  Run head;  // first run
  Run tail;  // last run; the same as head if there is only one
  std::uint32_t tokens = 0;
  std::uint32_t runs = 0;
};

// Whether `next` continues `run`: in position, in memory and with the same rotation.
inline bool continues(const Run& run, const Run& next) {
  return run.end() == next.first && run.cell + run.length == next.cell && run.rotation == next.rotation;
}

// The part of `run` that lies in `span`.
inline Run clipped(const Run& run, Span span) {
  const Pos begin = std::max(run.first, span.begin);
  const Pos end = std::min(run.end(), span.end);
  return {begin, run.cell + static_cast<std::uint32_t>(begin - run.first),
          static_cast<std::uint32_t>(end - begin), run.rotation};
}

inline RunSummary summary_of(const Run& piece) { return {piece, piece, piece.length, 1}; }

inline RunSummary operator+(const RunSummary& a, const RunSummary& b) {
  const bool joined = continues(a.tail, b.head);
  RunSummary sum{a.head, b.tail, a.tokens + b.tokens, a.runs + b.runs};
  if (!joined) return sum;
  --sum.runs;
  if (a.runs == 1) sum.head.length += b.head.length;
  if (b.runs == 1) sum.tail = {a.tail.first, a.tail.cell, a.tail.length + b.tail.length, a.tail.rotation};
  return sum;
}

// All leaves have height 0 and the same depth. A node is at least half full, unless it is
// the root or on the right edge of its list, so that the height is at most
// log16(pieces) + 1.
struct RunList::Node {
  static constexpr std::uint32_t kFanout = 32;

  std::uint32_t refs = 1;  // lists and nodes that point here
  std::uint8_t height = 0;
  enum class Mark : std::uint8_t { none, seen, changed } mark = Mark::none;  // of a Relocation
  std::uint16_t count = 0;                                                   // pieces or children, at least 1
  RunSummary sum;
  union {
    Run pieces[kFanout];  // height 0: each inside one block
    Node* children[kFanout];
  };

  explicit Node(std::uint32_t height_of_node)
      : height(static_cast<std::uint8_t>(height_of_node)), children{} {
    if (is_leaf()) std::uninitialized_default_construct_n(pieces, kFanout);
  }

  bool is_leaf() const { return height == 0; }
  bool is_full() const { return count == kFanout; }
  bool is_thin() const { return count < kFanout / 2; }
  RunSummary sum_of(std::uint32_t index) const {
    return is_leaf() ? summary_of(pieces[index]) : children[index]->sum;
  }
  Pos first_of(std::uint32_t index) const {
    return is_leaf() ? pieces[index].first : children[index]->sum.head.first;
  }
  // Number of entries whose first position is below `end`.
  std::uint32_t entries_below(Pos end) const;
  // Calls change(block, cells of it as bits) for the cells of a leaf's pieces from `index` on.
  template <class Change>
  void for_blocks(std::uint32_t index, Change change) const;
  void add_up();
  void lose_front(std::uint32_t tokens);
  void push(const Run& piece);
  void push(Node* child);
  // Moves the first `moved` entries of `next` behind those of this node, or the last ones
  // of `previous` before them. Sums are not kept up.
  void take_front(Node& next, std::uint32_t moved);
  void take_back(Node& previous, std::uint32_t moved);
};

// Pieces of one block that follow each other in the list go in one call, so that runs of
// length 1 cost little more than long ones.
template <class Change>
void RunList::Node::for_blocks(std::uint32_t index, Change change) const {
  BlockIndex block = 0;
  std::uint64_t cells = 0;
  for (; index < count; ++index) {
    const Run& piece = pieces[index];
    const std::uint32_t offset = piece.cell % kBlockCells;
    const std::uint64_t more = bits::stretch(offset, piece.length);
    if (cells != 0 && (block != piece.cell / kBlockCells || (cells & more) != 0)) {
      change(block, cells);
      cells = 0;
    }
    block = piece.cell / kBlockCells;
    cells |= more;
  }
  if (cells != 0) change(block, cells);
}

}  // namespace pykv
