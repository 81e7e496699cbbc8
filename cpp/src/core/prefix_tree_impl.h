// Floor 1, internal. What a PrefixTree consists of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/prefix_tree_marks.h"
#include "core/prefix_tree_nodes.h"
#include "pykv/prefix_tree.h"

namespace pykv {

struct PrefixTree::Impl {
  static constexpr std::uint32_t kRoot = 0;
  static constexpr std::uint32_t kFreeHolder = std::uint32_t{1} << 31;  // above every node id
  static constexpr std::uint32_t kNoHolder = kFreeHolder - 1;

  Impl(CellMap& map, EvictionPolicy& eviction, EdgeHash hash) : cells(map), policy(eviction), nodes(hash) {}

  std::uint32_t node_of(HolderId holder, const char* method) const;  // throws InvalidArgument
  HolderId new_holder(std::uint32_t node);
  // `node` gains or loses a holder. What nobody holds any more is settled.
  void hold(std::uint32_t node);
  void release(std::uint32_t node, double now);

  std::uint32_t split(std::uint32_t node, std::uint32_t count);
  std::uint32_t split_or_above(std::uint32_t node, std::uint32_t count);  // without memory: the parent
  // Joins `node` with its only child, if both may be one node. Left out without memory.
  void merge(std::uint32_t node);
  // Ends of the walk from `node` along `tokens` as the end of a node.
  std::uint32_t end_of(const PrefixNodes::Reach& reach);
  // Node on the path of `node` that covers the token before `depth`; the root for 0.
  std::uint32_t ancestor_at(std::uint32_t node, std::uint32_t depth) const;
  std::uint32_t ready_depth(std::uint32_t node) const;  // ready tokens on the path
  // Announces `tokens` behind `node`, in it if nobody but `holders` holds stand there.
  // Returns the node where they end.
  std::uint32_t extend(std::uint32_t node, std::uint32_t holders, NamespaceId ns,
                       std::span<const Token> tokens);

  // Restores the invariants of a node that lost a holder, a child or tokens: removes what
  // is announced for nobody, and empty nodes upwards; merges; tells the policy.
  void settle(std::uint32_t node);
  void remove(std::uint32_t leaf);
  void trim(std::uint32_t leaf, std::uint32_t tokens);
  void drop_announced(std::uint32_t leaf);
  void offer(std::uint32_t leaf);     // as a candidate, or with new facts
  void withdraw(std::uint32_t node);  // if it is a candidate

  // Checks the runs given to publish() and returns the position where they end.
  std::uint32_t checked_end(std::uint32_t node, std::uint32_t begin, std::span<const Run> runs) const;
  // Fills `path` with the nodes that gain cells when [ready, end) is published, from the
  // root downwards to `last`, and makes room in them for `spans` more spans.
  void prepare_path(std::uint32_t last, std::uint32_t ready, std::uint32_t end, std::size_t spans);
  void flag(std::span<const CellSpan> spans);  // in the cell map; all or none
  void unflag(std::span<const CellSpan> spans);

  CellMap& cells;
  EvictionPolicy& policy;
  PrefixNodes nodes;
  PrefixMarks marks{nodes};
  std::vector<std::uint32_t> holder_nodes;  // by holder id; with kFreeHolder: the next free id
  std::uint32_t first_free_holder = kNoHolder;
  std::vector<std::uint32_t> path;  // scratch of publish()
  TreeCounts counts;
};

}  // namespace pykv
