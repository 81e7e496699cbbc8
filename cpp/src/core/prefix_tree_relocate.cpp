// Nodes whose cells move.
#include <algorithm>
#include <utility>

#include "core/cell_moves.h"
#include "core/prefix_tree_impl.h"

namespace pykv {
namespace {

// The part of `span` that lies in the block of its first cell.
CellSpan in_first_block(CellSpan span) {
  return {span.begin, std::min(span.length, kBlockCells - span.begin % kBlockCells)};
}

template <class Visit>
void for_blocks(CellSpan span, Visit visit) {
  while (span.length > 0) {
    const CellSpan part = in_first_block(span);
    visit(part);
    span = {span.begin + part.length, span.length - part.length};
  }
}

bool touches(const CellMoves& moves, std::span<const CellSpan> spans) {
  bool any = false;
  for (const CellSpan span : spans)
    for_blocks(span, [&](CellSpan part) { any = any || moves.touches(part.begin / kBlockCells); });
  return any;
}

CellStretch moved(const CellMoves& moves, std::span<const CellSpan> spans) {
  CellStretch stretch;
  for (const CellSpan span : spans) {
    for_blocks(span, [&](CellSpan part) {
      if (!moves.touches(part.begin / kBlockCells)) return stretch.append(part);
      for (std::uint32_t i = 0; i < part.length; ++i) stretch.append({moves.target(part.begin + i), 1});
    });
  }
  return stretch;
}

}  // namespace

struct PrefixTree::Relocation::Impl {
  PrefixNodes& nodes;
  std::vector<std::pair<std::uint32_t, CellStretch>> moved;  // by node
};

PrefixTree::Relocation::Relocation(PrefixTree& tree, const CellMoves& moves)
    : impl_(std::make_unique<Impl>(Impl{tree.impl_->nodes, {}})) {
  PrefixNodes& nodes = impl_->nodes;
  for (std::uint32_t id = 1; id < nodes.id_limit(); ++id) {
    const std::span<const CellSpan> spans = std::as_const(nodes[id]).cells.view();
    if (touches(moves, spans)) impl_->moved.emplace_back(id, pykv::moved(moves, spans));
  }
}

PrefixTree::Relocation::~Relocation() = default;

void PrefixTree::Relocation::apply() noexcept {
  for (auto& [id, stretch] : impl_->moved) impl_->nodes[id].cells = std::move(stretch);
}

void PrefixTree::for_cells(const std::function<void(std::span<const CellSpan>)>& visit) const {
  const PrefixNodes& nodes = impl_->nodes;
  for (std::uint32_t id = 1; id < nodes.id_limit(); ++id)
    if (nodes[id].ready > 0) visit(nodes[id].cells.view());
}

}  // namespace pykv
