// Looking into a prefix tree: its nodes as values, and the check of every invariant.
#include <algorithm>
#include <string>

#include "core/prefix_tree_impl.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

void require(bool holds, std::uint32_t node, const char* what) {
  if (!holds) throw IntegrityError("[PrefixTree.check_integrity] node " + std::to_string(node) + ": " + what);
}

void check_links(const PrefixNodes& nodes, std::uint32_t id) {
  const PrefixNode& node = nodes[id];
  require(node.parent < nodes.id_limit() && nodes[node.parent].is_live, id, "its parent is gone");
  const PrefixNode& parent = nodes[node.parent];
  require(node.length() > 0, id, "it is empty");
  require(node.start == parent.end(), id, "it does not begin where its parent ends");
  require(node.first == node.tokens.view().front(), id, "its edge names another token");
  nodes.require_edge(id);
  require(nodes.child(node.parent, node.name_space, node.first) == id, id,
          "its edge is missing or another child has the same");
  require(node.ready <= node.length(), id, "more tokens are ready than it has");
  require(node.ready == 0 || parent.is_ready(), id, "it is ready before its parent");
  require(node.merge_failed || !nodes.can_merge(id), id, "it could be one node with its only child");
}

// Marks its cells in `seen`.
void check_cells(const PrefixNode& node, std::uint32_t id, const CellMap& cells, std::vector<bool>& seen) {
  std::uint32_t sum = 0;
  for (const CellSpan span : node.cells.view()) {
    sum += span.length;
    for (CellIndex cell = span.begin; cell < span.begin + span.length; ++cell) {
      require(cells.in_tree(cell), id, "one of its cells is not flagged as in the tree");
      require(!seen[cell], id, "one of its cells is in the tree twice");
      seen[cell] = true;
    }
  }
  require(sum == node.ready, id, "its cells do not cover its ready tokens");
}

void check_policy(const PrefixNode& node, std::uint32_t id) {
  const bool evictable = node.children == 0 && node.holders == 0;
  require(node.is_candidate == evictable, id,
          "it is a leaf without holders that the policy does not know, or the reverse");
  require(!evictable || node.is_ready(), id, "it has announced tokens that nobody will compute");
}

}  // namespace

std::vector<PrefixTree::NodeView> PrefixTree::nodes() const {
  const PrefixNodes& nodes = impl_->nodes;
  // A parent counts as used when something below it was: from the leaves upwards.
  std::vector<double> last_used(nodes.id_limit());
  std::vector<std::uint32_t> children(nodes.id_limit());
  for (std::uint32_t id = 0; id < nodes.id_limit(); ++id) {
    last_used[id] = nodes[id].last_used;
    children[id] = nodes[id].children;
  }
  for (std::uint32_t id = 1; id < nodes.id_limit(); ++id) {
    if (!nodes[id].is_live || nodes[id].children > 0) continue;
    for (std::uint32_t at = id; at != Impl::kRoot && children[at] == 0; at = nodes[at].parent) {
      const std::uint32_t parent = nodes[at].parent;
      last_used[parent] = std::max(last_used[parent], last_used[at]);
      --children[parent];
    }
  }
  std::vector<NodeView> views;
  views.reserve(impl_->counts.nodes);
  for (std::uint32_t id = 1; id < nodes.id_limit(); ++id) {
    const PrefixNode& node = nodes[id];
    if (!node.is_live) continue;
    views.push_back({NodeId{id}, NodeId{node.parent}, NamespaceId{node.name_space}, node.end(), node.length(),
                     node.ready, node.children, node.holders, last_used[id]});
  }
  return views;
}

void PrefixTree::check_integrity() const {
  const PrefixNodes& nodes = impl_->nodes;
  TreeCounts recount;
  std::vector<std::uint32_t> children(nodes.id_limit()), child_xor(nodes.id_limit()),
      holders(nodes.id_limit());
  std::vector<bool> seen(impl_->cells.counts().capacity);
  for (std::uint32_t id = 1; id < nodes.id_limit(); ++id) {
    const PrefixNode& node = nodes[id];
    if (!node.is_live) continue;
    check_links(nodes, id);
    check_cells(node, id, impl_->cells, seen);
    check_policy(node, id);
    ++children[node.parent];
    child_xor[node.parent] ^= id;
    ++recount.nodes;
    recount.tokens += node.length();
    recount.ready_tokens += node.ready;
    recount.candidates += node.is_candidate ? 1 : 0;
  }
  for (const std::uint32_t node : impl_->holder_nodes) {
    if ((node & Impl::kFreeHolder) != 0) continue;
    ++holders[node];
    ++recount.holders;
  }
  for (std::uint32_t id = 0; id < nodes.id_limit(); ++id) {
    require(nodes[id].children == children[id] && nodes[id].child_xor == child_xor[id], id,
            "its children differ from a recount");
    require(nodes[id].holders == holders[id], id, "its holders differ from a recount");
  }
  impl_->marks.check_integrity();
  const TreeCounts& counts = impl_->counts;
  require(recount.nodes == counts.nodes && recount.tokens == counts.tokens &&
              recount.ready_tokens == counts.ready_tokens && recount.holders == counts.holders &&
              recount.candidates == counts.candidates && nodes.edge_count() == counts.nodes,
          Impl::kRoot, "the counters differ from a recount");
  require(impl_->policy.size() == counts.candidates, Impl::kRoot, "the policy knows other candidates");
  for (CellIndex cell = 0; cell < seen.size(); ++cell)
    require(seen[cell] || !impl_->cells.in_tree(cell), Impl::kRoot, "a flagged cell is in no node");
}

}  // namespace pykv
