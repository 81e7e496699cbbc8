// Floor 1. Radix tree over tokens, edge key (namespace, token): which prefixes are in
// the pool, in which cells, and how far they may be used.
//
//  - A node holds a stretch of tokens of one namespace. Its first `ready` tokens have
//    cells (runs, flagged in_tree in the CellMap); the rest is *announced*: a session
//    is about to compute it. match() returns ready tokens only; `pending` tells how
//    many announced ones follow, so that a follower can wait instead of computing.
//  - grow() announces tokens behind a holder, publish() gives the next ones their cells
//    and moves `ready`, retract() takes back what nobody will compute.
//  - A Holder is a session's place, always at the end of a node: a place inside a node
//    splits it. It keeps everything up to there from eviction, and nothing behind it.
//  - A node that nobody holds any more merges with its child, if that is the only one and
//    of the same namespace: the tree does not remember where sessions once stood. The
//    merged node counts as used when its last used part was, and as hit as often as its
//    most hit part (the upper one: a match of the lower part passes through it).
//  - Comparison is by token and namespace, always. The hash only finds the bucket; with
//    a constant hash everything still works, slower (CVE-2025-25183).
//  - Only exact tokens may be published (Cache enforces exact_upto).
//
// Invariants (check_integrity): children of a node differ in (namespace, first token);
// ready < length implies every child has ready 0; runs cover exactly `ready` tokens;
// positions are the depth from the root; a cell is in at most one node; announced tokens
// have a holder at or below them, so that a leaf without holders is all ready; such a
// leaf is a reclaim candidate known to the policy, and nothing else is; no node could
// merge with its child (one whose merge found no memory may stay until it is next let go).
//
// Costs: match O(tokens / compared words + nodes), grow/publish O(tokens added); a place
// inside a node splits it, leaving one merges: O(tokens of the shorter part) amortized, and
// O(log candidates) if a leaf's facts change, however many children the nodes have; evict
// O(log candidates + cells) and at most one merge. Nothing recurses, whatever the shape.
// Threads: externally locked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "pykv/cell_map.h"
#include "pykv/policy.h"
#include "pykv/run_list.h"
#include "pykv/types.h"

namespace pykv {

using EdgeHash = std::uint64_t (*)(std::uint32_t parent, std::uint32_t name_space, Token token);
std::uint64_t default_edge_hash(std::uint32_t parent, std::uint32_t name_space, Token token);

struct PrefixMatch {
  std::uint32_t tokens = 0;   // matched and ready
  std::uint32_t pending = 0;  // announced tokens that match right behind them
  std::vector<Run> runs;      // cells of the matched tokens, positions from 0
};

struct TreeCounts {
  std::uint32_t nodes = 0;   // without the root
  std::uint64_t tokens = 0;  // announced and ready
  std::uint64_t ready_tokens = 0;
  std::uint32_t holders = 0;
  std::uint32_t candidates = 0;  // leaves the policy may evict
};

class PrefixTree {
 public:
  // `cells` and `policy` must outlive the tree.
  PrefixTree(CellMap& cells, EvictionPolicy& policy, EdgeHash hash = default_edge_hash);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Longest ready prefix of `tokens` in `ns`. Does not change the tree.
  PrefixMatch match(NamespaceId ns, std::span<const Token> tokens) const;
  // Only how many tokens that are; looks at no cell.
  std::uint32_t match_length(NamespaceId ns, std::span<const Token> tokens) const;

  // A place in the tree. Create with attach(), give back with detach().
  using HolderId = Id<struct HolderTag, std::uint32_t>;

  // Holds the first `depth` tokens of `tokens` (all of them must be in the tree, ready or
  // announced; throws IntegrityError otherwise); marks the path as used at time `now` and
  // counts a hit for its nodes.
  HolderId attach(NamespaceId ns, std::span<const Token> tokens, std::uint32_t depth, double now);
  HolderId copy(HolderId holder);  // fork
  // Its path becomes idle as of `now`, but for the last `forgotten` tokens of it, at most those of one
  // node, which are taken from the tree if nobody else holds or continues them.
  void detach(HolderId holder, double now, std::uint32_t forgotten = 0);
  std::uint32_t depth(HolderId holder) const;                     // tokens from the root
  void rewind(HolderId holder, std::uint32_t depth, double now);  // depth <= depth(holder)

  // Announces `tokens` behind the holder and moves it to their end. Tokens already
  // there are followed, not duplicated. Throws InvalidArgument past kMaxPos.
  void grow(HolderId holder, NamespaceId ns, std::span<const Token> tokens);

  // Gives tokens [begin, begin + sum of run lengths) of the holder's path their cells
  // and moves `ready`. Tokens that are ready already keep their cells (the given ones
  // stay with the sequence alone). Returns how many tokens became ready by this call.
  // Everything before `begin` must be ready, the runs must follow each other from
  // position `begin` without rotation, and end at or before the holder (throws
  // IntegrityError and changes nothing).
  std::uint32_t publish(HolderId holder, std::uint32_t begin, std::span<const Run> runs, double now);

  // Cells of the ready tokens [begin, end) of the holder's path, in position order. Throws
  // InvalidArgument if they are not all ready. O(nodes and runs behind `begin`).
  std::vector<Run> path_runs(HolderId holder, std::uint32_t begin, std::uint32_t end) const;

  // Moves the holder back to the last ready token of its path, or to `depth` if that is less,
  // and removes announced tokens that no other holder is at or below. Returns the holder's
  // depth. Cannot fail: without memory to split a node the holder goes to the end of the one
  // above.
  std::uint32_t retract(HolderId holder, double now, std::uint32_t depth = kMaxPos);

  // Removes up to `cells` tokens from the tail of the policy's next victim, a leaf without
  // holders. Returns the number of cells that became free; victims whose cells all stay
  // with sequences are passed over, so that 0 means: no candidate left (or `cells` is 0).
  // Removing a leaf makes its parent a candidate, unless that is held or has others; one
  // that has a single other child left merges with it.
  std::uint32_t evict(std::uint32_t cells, double now);

  // --- marks -----------------------------------------------------------------
  // A mark is a place behind a ready token. It holds nothing and splits no node; it goes when its
  // token is evicted. Ids are small and used again.
  using MarkId = Id<struct MarkTag, std::uint32_t>;
  // The mark behind the first `depth` tokens of the holder's path, made if there is none. Throws
  // InvalidArgument for 0 and what is not ready. O(nodes and marks behind it).
  MarkId mark(HolderId holder, std::uint32_t depth);
  void unmark(MarkId mark);
  std::uint32_t mark_depth(MarkId mark) const;
  // The deepest mark at most `limit` tokens deep along `tokens`, or along the holder's path.
  std::optional<MarkId> deepest_mark(NamespaceId ns, std::span<const Token> tokens,
                                     std::uint32_t limit) const;
  std::optional<MarkId> deepest_mark(HolderId holder, std::uint32_t limit) const;
  // `call` is told of marks that eviction takes; the tree must not change in it, nor may it throw.
  void on_mark_gone(std::function<void(MarkId mark)> call);

  const TreeCounts& counts() const;

  struct NodeView {  // for check, dashboards and tests
    NodeId id, parent;
    NamespaceId name_space;
    std::uint32_t depth = 0;  // of the node's end, in tokens from the root
    std::uint32_t length = 0, ready = 0, children = 0, holders = 0;
    double last_used = 0;  // of the node or anything below it
  };
  std::vector<NodeView> nodes() const;  // without the root, by id

  // Calls visit for the cells of each node that has some, in position order.
  void for_cells(const std::function<void(std::span<const CellSpan>)>& visit) const;

  // Cells of nodes on their way to others. Only the constructor can fail. O(nodes and spans).
  class Relocation {
   public:
    Relocation(PrefixTree& tree, const CellMoves& moves);
    ~Relocation();
    void apply() noexcept;  // the tree must not have changed since

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  void check_integrity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pykv
