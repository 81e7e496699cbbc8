#include "core/prefix_tree_nodes.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "pykv/errors.h"

namespace pykv {

std::uint64_t default_edge_hash(std::uint32_t parent, std::uint32_t name_space, Token token) {
  // The finalizer of splitmix64 (Steele, Lea, Flood 2014), once per half of the key.
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  const std::uint64_t key = std::uint64_t{parent} << 32 | static_cast<std::uint32_t>(token);
  return mix(key + 0x9e3779b97f4a7c15 * (std::uint64_t{name_space} + 1));
}

std::uint32_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  constexpr std::size_t stride = 64;  // tokens compared by one memcmp
  const std::size_t size = std::min(a.size(), b.size());
  std::size_t same = 0;
  while (same + stride <= size && std::memcmp(&a[same], &b[same], stride * sizeof(Token)) == 0)
    same += stride;
  while (same < size && a[same] == b[same]) ++same;
  return static_cast<std::uint32_t>(same);
}

PrefixNodes::PrefixNodes(EdgeHash hash) : hash_(hash), edges_(64) {
  if (hash == nullptr) throw InvalidArgument("[PrefixTree] the edge hash is null; leave it out");
  chunks_.push_back(std::make_unique<PrefixNode[]>(kChunk));
  chunks_[0][0].is_live = true;
  free_ids_.reserve(2 * kChunk);
}

std::uint32_t PrefixNodes::tag_of(std::uint32_t parent, std::uint32_t name_space, Token token) const {
  const std::uint64_t hash = hash_(parent, name_space, token);
  return static_cast<std::uint32_t>(hash ^ hash >> 32);
}

std::uint32_t PrefixNodes::child(std::uint32_t parent, std::uint32_t name_space, Token token) const {
  const PrefixNode& from = (*this)[parent];
  if (from.children == 0) return 0;
  if (from.children == 1) {  // no need of the table
    const PrefixNode& only = (*this)[from.child_xor];
    return only.first == token && only.name_space == name_space ? from.child_xor : 0;
  }
  const std::uint32_t tag = tag_of(parent, name_space, token);
  const std::size_t mask = edges_.size() - 1;
  for (std::size_t at = tag & mask; edges_[at].node != 0; at = (at + 1) & mask) {
    if (edges_[at].tag != tag) continue;
    const PrefixNode& node = (*this)[edges_[at].node];
    if (node.parent == parent && node.first == token && node.name_space == name_space) return edges_[at].node;
  }
  return 0;
}

std::size_t PrefixNodes::edge_of(std::uint32_t id) const {
  const PrefixNode& node = (*this)[id];
  const std::size_t mask = edges_.size() - 1;
  std::size_t at = tag_of(node.parent, node.name_space, node.first) & mask;
  while (edges_[at].node != id) {
    if (edges_[at].node == 0)
      throw IntegrityError("[PrefixTree] node " + std::to_string(id) + " has no edge; run check_integrity()");
    at = (at + 1) & mask;
  }
  return at;
}

void PrefixNodes::require_edge(std::uint32_t id) const { static_cast<void>(edge_of(id)); }

void PrefixNodes::grow_edges() {
  std::vector<Edge> old(edges_.size() * 2);
  old.swap(edges_);
  const std::size_t mask = edges_.size() - 1;
  for (const Edge& edge : old) {
    if (edge.node == 0) continue;
    std::size_t at = edge.tag & mask;
    while (edges_[at].node != 0) at = (at + 1) & mask;
    edges_[at] = edge;
  }
}

void PrefixNodes::link(std::uint32_t id) {
  const PrefixNode& node = (*this)[id];
  const std::uint32_t tag = tag_of(node.parent, node.name_space, node.first);
  const std::size_t mask = edges_.size() - 1;
  std::size_t at = tag & mask;
  while (edges_[at].node != 0) at = (at + 1) & mask;
  edges_[at] = {tag, id};
  ++used_;
}

// Closes the gap by moving later entries up that may lie there, so that no marks are left.
void PrefixNodes::unlink(std::uint32_t id) {
  const std::size_t mask = edges_.size() - 1;
  std::size_t gap = edge_of(id);
  for (std::size_t at = (gap + 1) & mask; edges_[at].node != 0; at = (at + 1) & mask) {
    const std::size_t home = edges_[at].tag & mask;
    if (((at - home) & mask) < ((at - gap) & mask)) continue;
    edges_[gap] = edges_[at];
    gap = at;
  }
  edges_[gap] = {};
  --used_;
}

std::uint32_t PrefixNodes::reserve() {
  if (4 * (std::size_t{used_} + 1) > 3 * edges_.size()) grow_edges();
  if (!free_ids_.empty()) return free_ids_.back();
  if (id_limit_ / kChunk == chunks_.size()) {
    // Room for every id, so that erase() cannot fail.
    if (free_ids_.capacity() < (chunks_.size() + 1) * kChunk) free_ids_.reserve(2 * free_ids_.capacity());
    chunks_.push_back(std::make_unique<PrefixNode[]>(kChunk));
  }
  free_ids_.push_back(id_limit_);
  return id_limit_++;
}

std::uint32_t PrefixNodes::create(std::uint32_t parent, std::uint32_t name_space,
                                  std::span<const Token> tokens) {
  const std::uint32_t id = reserve();
  PrefixNode& node = (*this)[id];
  node.tokens.append(tokens);
  free_ids_.pop_back();
  node.is_live = true;
  node.parent = parent;
  node.name_space = name_space;
  node.first = tokens.front();
  node.start = (*this)[parent].end();
  link(id);
  ++(*this)[parent].children;
  (*this)[parent].child_xor ^= id;
  return id;
}

std::uint32_t PrefixNodes::split(std::uint32_t id, std::uint32_t count) {
  const std::uint32_t upper_id = reserve();
  PrefixNode& lower = (*this)[id];
  PrefixNode& upper = (*this)[upper_id];
  const std::uint32_t ready = std::min(lower.ready, count);
  CellStretch::Cut cut = lower.cells.cut_at(ready, lower.ready);
  Strip<Token> shorter = lower.tokens.shorter_part(count);
  const std::size_t edge = edge_of(id);
  // Nothing fails from here on.
  upper.tokens = lower.tokens.take_front(count, std::move(shorter));
  upper.cells = lower.cells.take_front(std::move(cut));
  free_ids_.pop_back();
  upper.is_live = true;
  upper.parent = lower.parent;
  upper.name_space = lower.name_space;
  upper.first = lower.first;
  upper.start = lower.start;
  upper.ready = ready;
  upper.children = 1;
  upper.child_xor = id;
  upper.last_used = lower.last_used;
  upper.hits = lower.hits;
  edges_[edge].node = upper_id;
  (*this)[upper.parent].child_xor ^= id ^ upper_id;
  lower.parent = upper_id;
  lower.first = lower.tokens.view().front();
  lower.start += count;
  lower.ready -= ready;
  link(id);
  return upper_id;
}

bool PrefixNodes::can_merge(std::uint32_t id) const {
  const PrefixNode& node = (*this)[id];
  return id != 0 && node.holders == 0 && node.children == 1 &&
         (*this)[node.child_xor].name_space == node.name_space;
}

std::uint32_t PrefixNodes::merge(std::uint32_t id) {
  PrefixNode& upper = (*this)[id];
  const std::uint32_t lower_id = upper.child_xor;
  PrefixNode& lower = (*this)[lower_id];
  lower.tokens.reserve_join(upper.tokens);
  lower.cells.reserve_join(upper.cells);
  // Nothing fails from here on.
  unlink(lower_id);
  edges_[edge_of(id)].node = lower_id;
  (*this)[upper.parent].child_xor ^= id ^ lower_id;
  lower.tokens.join(std::move(upper.tokens));
  lower.cells.join(std::move(upper.cells));
  lower.parent = upper.parent;
  lower.first = upper.first;
  lower.start = upper.start;
  lower.ready += upper.ready;  // it is 0 unless the upper part is all ready
  lower.last_used = std::max(lower.last_used, upper.last_used);
  lower.hits = std::max(lower.hits, upper.hits);
  upper = PrefixNode{};
  free_ids_.push_back(id);
  return lower_id;
}

void PrefixNodes::erase(std::uint32_t id) {
  unlink(id);
  PrefixNode& parent = (*this)[(*this)[id].parent];
  --parent.children;
  parent.child_xor ^= id;
  (*this)[id] = PrefixNode{};
  free_ids_.push_back(id);
}

PrefixNodes::Reach PrefixNodes::follow(std::uint32_t node, std::uint32_t name_space,
                                       std::span<const Token> tokens) const {
  Reach reach{node, (*this)[node].length(), 0};
  walk(node, name_space, tokens,
       [&](std::uint32_t next, std::uint32_t same) { reach = {next, same, reach.matched + same}; });
  return reach;
}

}  // namespace pykv
