// Pieces of many lists whose cells move.
#include "core/cell_moves.h"
#include "core/run_node.h"
#include "pykv/run_list.h"

namespace pykv {

RunList::Relocation::~Relocation() {
  for (Node* node : nodes_) node->mark = Node::Mark::none;
}

void RunList::Relocation::add(const RunList& list) {
  if (list.root_ != nullptr) add(*list.root_);
}

// Recursion is as deep as the tree is high.
void RunList::Relocation::add(Node& node) {
  if (node.mark != Node::Mark::none) return;
  for (std::uint32_t i = 0; !node.is_leaf() && i < node.count; ++i) add(*node.children[i]);
  nodes_.push_back(&node);
  node.mark = Node::Mark::seen;
}

std::vector<CellSpan> RunList::Relocation::restrict(CellMoves& moves) const {
  std::vector<CellSpan> pieces;
  for (const Node* node : nodes_) {
    for (std::uint32_t i = 0; node->is_leaf() && i < node->count; ++i) {
      const Run& piece = node->pieces[i];
      if (piece.length > 1 && moves.touches(piece.cell / kBlockCells))
        pieces.push_back({piece.cell, piece.length});
    }
  }
  return moves.respect(pieces);
}

void RunList::Relocation::apply(const CellMoves& moves) noexcept {
  for (Node* node : nodes_) {
    bool changes = false;
    for (std::uint32_t i = 0; i < node->count; ++i) {
      if (!node->is_leaf()) {
        changes = changes || node->children[i]->mark == Node::Mark::changed;
        continue;
      }
      CellIndex& cell = node->pieces[i].cell;
      const CellIndex target = moves.target(cell);
      changes = changes || target != cell;
      cell = target;
    }
    if (!changes) continue;
    node->mark = Node::Mark::changed;
    node->add_up();
  }
}

}  // namespace pykv
