#include "core/prefix_tree_impl.h"

#include <algorithm>
#include <new>
#include <string>

#include "pykv/errors.h"

namespace pykv {

std::uint32_t PrefixTree::Impl::node_of(HolderId holder, const char* method) const {
  if (holder.value < holder_nodes.size() && (holder_nodes[holder.value] & kFreeHolder) == 0)
    return holder_nodes[holder.value];
  throw InvalidArgument(std::string("[PrefixTree.") + method + "] holder " + std::to_string(holder.value) +
                        " is not attached; use an id that attach() or copy() gave");
}

PrefixTree::HolderId PrefixTree::Impl::new_holder(std::uint32_t node) {
  if (first_free_holder == kNoHolder) {
    holder_nodes.push_back(kFreeHolder | kNoHolder);
    first_free_holder = static_cast<std::uint32_t>(holder_nodes.size() - 1);
  }
  const std::uint32_t id = first_free_holder;
  first_free_holder = holder_nodes[id] & ~kFreeHolder;
  holder_nodes[id] = node;
  hold(node);
  ++counts.holders;
  return {id};
}

void PrefixTree::Impl::hold(std::uint32_t node) {
  ++nodes[node].holders;
  withdraw(node);
}

void PrefixTree::Impl::release(std::uint32_t node, double now) {
  --nodes[node].holders;
  nodes[node].last_used = std::max(nodes[node].last_used, now);
  settle(node);
}

std::uint32_t PrefixTree::Impl::split(std::uint32_t node, std::uint32_t count) {
  policy.reserve(nodes.id_limit() + 1);
  const std::uint32_t upper = nodes.split(node, count);
  marks.follow_split(upper, node);
  ++counts.nodes;
  if (nodes[node].is_candidate) offer(node);
  return upper;
}

std::uint32_t PrefixTree::Impl::split_or_above(std::uint32_t node, std::uint32_t count) {
  try {
    return split(node, count);
  } catch (const std::bad_alloc&) {
    return nodes[node].parent;
  }
}

void PrefixTree::Impl::merge(std::uint32_t node) {
  if (!nodes.can_merge(node)) return;
  const std::uint32_t first_mark = nodes[node].first_mark, last_mark = nodes[node].last_mark;
  std::uint32_t merged = 0;
  try {
    merged = nodes.merge(node);
  } catch (const std::bad_alloc&) {
    nodes[node].merge_failed = true;
    return;
  }
  marks.follow_merge(first_mark, last_mark, merged);
  --counts.nodes;
  if (nodes[merged].is_candidate) offer(merged);
}

std::uint32_t PrefixTree::Impl::end_of(const PrefixNodes::Reach& reach) {
  return reach.inside == nodes[reach.node].length() ? reach.node : split(reach.node, reach.inside);
}

std::uint32_t PrefixTree::Impl::ancestor_at(std::uint32_t node, std::uint32_t depth) const {
  if (depth == 0) return kRoot;  // however many nodes there are above
  while (node != kRoot && nodes[node].start >= depth) node = nodes[node].parent;
  return node;
}

std::uint32_t PrefixTree::Impl::ready_depth(std::uint32_t node) const {
  while (node != kRoot && nodes[node].ready == 0) node = nodes[node].parent;
  return nodes[node].start + nodes[node].ready;
}

std::uint32_t PrefixTree::Impl::extend(std::uint32_t node, std::uint32_t holders, NamespaceId ns,
                                       std::span<const Token> tokens) {
  PrefixNode& at = nodes[node];
  std::uint32_t end = node;
  if (node != kRoot && at.children == 0 && at.holders == holders && at.name_space == ns.value) {
    at.tokens.append(tokens);
  } else {
    policy.reserve(nodes.id_limit() + 1);
    end = nodes.create(node, ns.value, tokens);
    withdraw(node);
    ++counts.nodes;
  }
  counts.tokens += tokens.size();
  return end;
}

void PrefixTree::Impl::settle(std::uint32_t node) {
  while (node != kRoot && nodes[node].holders == 0) {
    if (nodes[node].children > 0) return merge(node);
    drop_announced(node);
    if (nodes[node].length() > 0) return offer(node);
    const std::uint32_t parent = nodes[node].parent;
    remove(node);
    node = parent;
  }
}

void PrefixTree::Impl::remove(std::uint32_t leaf) {
  withdraw(leaf);
  PrefixNode& parent = nodes[nodes[leaf].parent];
  parent.last_used = std::max(parent.last_used, nodes[leaf].last_used);
  nodes.erase(leaf);
  --counts.nodes;
}

void PrefixTree::Impl::drop_announced(std::uint32_t leaf) {
  PrefixNode& node = nodes[leaf];
  if (node.is_ready()) return;
  counts.tokens -= node.length() - node.ready;
  node.tokens.drop_back(node.length() - node.ready);
}

void PrefixTree::Impl::trim(std::uint32_t leaf, std::uint32_t tokens) {
  PrefixNode& node = nodes[leaf];
  for (std::uint32_t left = tokens; left > 0;) {
    const CellSpan last = node.cells.pop(left);
    cells.clear_in_tree(last);
    left -= last.length;
  }
  node.ready -= tokens;
  node.tokens.drop_back(tokens);
  counts.tokens -= tokens;
  counts.ready_tokens -= tokens;
  marks.cut(leaf, node.end());
  settle(leaf);
}

void PrefixTree::Impl::offer(std::uint32_t leaf) {
  PrefixNode& node = nodes[leaf];
  policy.candidate({NodeId{leaf}, node.length(), node.end(), node.last_used, node.hits});
  counts.candidates += node.is_candidate ? 0 : 1;
  node.is_candidate = true;
}

void PrefixTree::Impl::withdraw(std::uint32_t node) {
  if (!nodes[node].is_candidate) return;
  policy.withdraw(NodeId{node});
  nodes[node].is_candidate = false;
  --counts.candidates;
}

std::uint32_t PrefixTree::Impl::checked_end(std::uint32_t node, std::uint32_t begin,
                                            std::span<const Run> runs) const {
  const std::uint32_t ready = ready_depth(node);
  bool ok = begin <= ready;
  std::uint64_t end = begin;
  for (const Run& run : runs) {
    ok = ok && run.first >= 0 && run.rotation == 0 && static_cast<std::uint64_t>(run.first) == end;
    end += run.length;
  }
  if (ok && end <= nodes[node].end()) return static_cast<std::uint32_t>(end);
  throw IntegrityError("[PrefixTree.publish] runs from " + std::to_string(begin) + " to " +
                       std::to_string(end) + " with " + std::to_string(ready) +
                       " tokens ready and the holder at " + std::to_string(nodes[node].end()) +
                       ": they must begin where tokens are ready, follow each other, have no rotation, " +
                       "and end at or before the holder");
}

void PrefixTree::Impl::prepare_path(std::uint32_t last, std::uint32_t ready, std::uint32_t end,
                                    std::size_t spans) {
  path.clear();
  for (std::uint32_t at = last;; at = nodes[at].parent) {
    PrefixNode& node = nodes[at];
    const std::size_t gained = std::min(end, node.end()) - (node.start + node.ready);
    node.cells.reserve_more(std::min(gained, spans));
    path.push_back(at);
    if (node.start <= ready) break;
  }
  std::reverse(path.begin(), path.end());
}

void PrefixTree::Impl::flag(std::span<const CellSpan> spans) {
  std::size_t flagged = 0;
  try {
    for (; flagged < spans.size(); ++flagged) cells.set_in_tree(spans[flagged]);
  } catch (...) {
    unflag(spans.first(flagged));
    throw;
  }
}

void PrefixTree::Impl::unflag(std::span<const CellSpan> spans) {
  for (const CellSpan span : spans) cells.clear_in_tree(span);
}

}  // namespace pykv
