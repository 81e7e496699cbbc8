// What can be asked about a RunList.
#include <algorithm>
#include <string>

#include "core/run_node.h"
#include "pykv/errors.h"
#include "pykv/run_list.h"

namespace pykv {
namespace {

// Makes runs of pieces and passes them on when they are complete.
template <class Visitor>
class Joiner {
 public:
  explicit Joiner(Visitor visitor) : visitor_(visitor) {}

  void add(const Run& part) {
    if (open_.length > 0 && continues(open_, part)) {
      open_.length += part.length;
      return;
    }
    finish();
    open_ = part;
  }

  void finish() {
    if (open_.length > 0) visitor_.call(visitor_.target, open_);
    open_ = {};
  }

 private:
  Visitor visitor_;
  Run open_{};
};

template <class Node, class Sink>
void walk(const Node& node, Span span, Sink& sink) {
  const std::uint32_t low = node.entries_below(span.begin);
  for (std::uint32_t i = low > 0 ? low - 1 : 0; i < node.count; ++i) {
    const RunSummary sum = node.sum_of(i);
    if (sum.head.first >= span.end) return;
    if (sum.tail.end() <= span.begin) continue;
    if (sum.runs == 1)
      sink.add(clipped(sum.head, span));
    else
      walk(*node.children[i], span, sink);
  }
}

// The run that covers `pos`, as far as it lies below `node`.
template <class Node>
std::optional<Run> covering(const Node& node, Pos pos) {
  const std::uint32_t below = node.entries_below(pos + 1);
  if (below == 0) return std::nullopt;
  const std::uint32_t at = below - 1;
  std::optional<Run> run;
  if (!node.is_leaf())
    run = covering(*node.children[at], pos);
  else if (pos < node.pieces[at].end())
    run = node.pieces[at];
  if (!run) return run;
  for (std::uint32_t i = at; i > 0 && run->first == node.first_of(i); --i) {
    const Run before = node.sum_of(i - 1).tail;
    if (!continues(before, *run)) break;
    *run = {before.first, before.cell, before.length + run->length, run->rotation};
  }
  for (std::uint32_t i = at + 1; i < node.count; ++i) {
    const RunSummary next = node.sum_of(i);
    if (!continues(*run, next.head)) break;
    run->length += next.head.length;
  }
  return run;
}

template <class Node>
std::optional<Pos> next_below(const Node& node, Pos pos) {
  const std::uint32_t low = node.entries_below(pos);
  if (low > 0 && node.sum_of(low - 1).tail.end() > pos)
    return node.is_leaf() ? pos : next_below(*node.children[low - 1], pos);
  if (low < node.count) return node.first_of(low);
  return std::nullopt;
}

template <class Node>
std::optional<Pos> previous_below(const Node& node, Pos pos) {
  const std::uint32_t low = node.entries_below(pos);
  if (low == 0) return std::nullopt;
  if (!node.is_leaf()) return previous_below(*node.children[low - 1], pos);
  return std::min(node.pieces[low - 1].end(), pos) - 1;
}

template <class Node>
std::uint32_t shared_below(const Node& node, const CellMap& cells) {
  if (node.refs > 1) return node.sum.tokens;
  std::uint32_t shared = 0;
  for (std::uint32_t i = 0; i < node.count; ++i)
    shared += node.is_leaf() ? cells.shared_cells({node.pieces[i].cell, node.pieces[i].length})
                             : shared_below(*node.children[i], cells);
  return shared;
}

void require(bool holds, const char* what) {
  if (!holds) throw IntegrityError(std::string("[RunList.check_integrity] ") + what);
}

bool operator==(const RunSummary& a, const RunSummary& b) {
  return a.head == b.head && a.tail == b.tail && a.tokens == b.tokens && a.runs == b.runs;
}

void check_piece(const Run& piece, Pos end, const CellMap& cells) {
  require(piece.length > 0 && piece.cell % kBlockCells + piece.length <= kBlockCells,
          "a piece is empty or leaves its block");
  require(piece.first >= std::max(end - 1, 0), "positions descend");
  for (std::uint32_t i = 0; i < piece.length; ++i)
    require(cells.holders(piece.cell + i) > 0, "a cell of the list has no holder");
}

// Checks everything below `node`; `end` is the end of what came before. Nodes on the right
// edge and the root may be thin.
template <class Node>
void check_node(const Node& node, Pos& end, bool may_be_thin, const CellMap& cells) {
  require(node.refs > 0 && node.count > 0 && node.count <= Node::kFanout, "a node is empty or overfull");
  require(may_be_thin || !node.is_thin(), "a node inside the tree is thin");
  for (std::uint32_t i = 0; i < node.count; ++i) {
    if (node.is_leaf()) {
      check_piece(node.pieces[i], end, cells);
      end = node.pieces[i].end();
    } else {
      require(node.children[i]->height + 1 == node.height, "leaves differ in depth");
      check_node(*node.children[i], end, may_be_thin && i + 1 == node.count, cells);
    }
  }
  Node recount(node);
  recount.add_up();
  require(recount.sum == node.sum, "a summary differs from a recount");
}

}  // namespace

void RunList::visit(Span span, Visitor visitor) const {
  if (root_ == nullptr || span.begin >= span.end) return;
  Joiner<Visitor> joiner(visitor);
  if (span.begin < end() && span.end > begin()) walk(*root_, span, joiner);
  joiner.finish();
}

std::vector<Run> RunList::to_vector() const {
  std::vector<Run> all;
  all.reserve(runs());
  for_each({begin(), end()}, [&](const Run& run) { all.push_back(run); });
  return all;
}

std::optional<Run> RunList::find(Pos pos) const {
  if (root_ == nullptr || pos < begin() || pos >= end()) return std::nullopt;
  return covering(*root_, pos);
}

std::optional<Pos> RunList::next(Pos pos) const {
  return root_ == nullptr ? std::nullopt : next_below(*root_, pos);
}

std::optional<Pos> RunList::previous(Pos pos) const {
  return root_ == nullptr ? std::nullopt : previous_below(*root_, pos);
}

std::uint32_t RunList::shared_cells() const { return root_ == nullptr ? 0 : shared_below(*root_, *cells_); }

void RunList::check_integrity() const {
  Pos end_of_last = 0;
  if (root_ != nullptr) check_node(*root_, end_of_last, true, *cells_);
}

}  // namespace pykv
