// Floor 1, internal. The nodes of a prefix tree and the table of its edges.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/strip.h"
#include "pykv/prefix_tree.h"

namespace pykv {

// The cells of the ready tokens of a node; neighbouring spans are merged.
class CellStretch {
 public:
  std::span<const CellSpan> view() const { return spans_.view(); }
  void reserve_more(std::size_t spans) { spans_.reserve_back(spans); }
  void append(CellSpan span);
  CellSpan pop(std::uint32_t most);  // up to `most` cells of the last span

  // As of a Strip, in cells: only the first step can fail.
  struct Cut {
    std::size_t span = 0;      // the first one that is not taken whole
    std::uint32_t inside = 0;  // cells of it that are taken
    bool front_is_shorter = false;
    Strip<CellSpan> shorter;  // copy of the side with fewer spans
  };
  Cut cut_at(std::uint32_t count, std::uint32_t size) const;  // size: of all spans
  CellStretch take_front(Cut cut) noexcept;
  void reserve_join(CellStretch& front) { spans_.reserve_join(front.spans_); }
  void join(CellStretch&& front) noexcept;

 private:
  Strip<CellSpan> spans_;
};

struct PrefixNode {
  Strip<Token> tokens;
  std::uint32_t parent = 0;
  std::uint32_t name_space = 0;
  Token first = 0;          // first of `tokens`
  std::uint32_t start = 0;  // tokens from the root to its beginning
  std::uint32_t ready = 0;  // leading tokens with cells
  std::uint32_t children = 0;
  std::uint32_t child_xor = 0;  // of the ids of its children: the id of an only child
  std::uint32_t holders = 0;
  bool is_live = false;
  bool is_candidate = false;                    // known to the policy
  std::uint32_t first_mark = 0, last_mark = 0;  // prefix_tree_marks.h
  bool merge_failed = false;                    // for want of memory: it may stay before its only child
  CellStretch cells;                            // of the ready tokens
  double last_used = 0;                         // itself; a child's counts once the child is gone
  std::uint64_t hits = 0;

  std::uint32_t length() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t end() const { return start + length(); }
  bool is_ready() const { return ready == length(); }
};

// Length of the common prefix.
std::uint32_t common_prefix(std::span<const Token> a, std::span<const Token> b);

// Node 0 is the root. Ids are reused; addresses stay valid while a node lives.
class PrefixNodes {
 public:
  explicit PrefixNodes(EdgeHash hash);

  PrefixNode& operator[](std::uint32_t id) { return chunks_[id / kChunk][id % kChunk]; }
  const PrefixNode& operator[](std::uint32_t id) const { return chunks_[id / kChunk][id % kChunk]; }
  std::uint32_t id_limit() const { return id_limit_; }  // every id is below
  std::uint32_t edge_count() const { return used_; }

  // Child of `parent` that begins with `token` in `name_space`; 0 if there is none.
  std::uint32_t child(std::uint32_t parent, std::uint32_t name_space, Token token) const;

  void require_edge(std::uint32_t id) const;  // throws IntegrityError if the table lacks it

  // A new leaf behind `parent`. Strong exception guarantee, as for split() and merge().
  std::uint32_t create(std::uint32_t parent, std::uint32_t name_space, std::span<const Token> tokens);
  // Puts the first `count` tokens of `id` into a new parent of it, which is returned. `id`
  // keeps the rest, its holders and its children. 0 < count < length.
  std::uint32_t split(std::uint32_t id, std::uint32_t count);
  // Undoes split(): puts the tokens of `id` before those of its only child, which is
  // returned and keeps its id, so that neither its children nor its holders change.
  std::uint32_t merge(std::uint32_t id);
  // Whether `id` has no holders and a single child, of its own namespace. Not the root.
  bool can_merge(std::uint32_t id) const;
  void erase(std::uint32_t id);  // a leaf

  // The deepest node that a walk along `tokens` from the end of `node` reaches.
  struct Reach {
    std::uint32_t node;
    std::uint32_t inside;   // leading tokens of it that match; all but on a partial match
    std::uint32_t matched;  // of `tokens`
  };
  Reach follow(std::uint32_t node, std::uint32_t name_space, std::span<const Token> tokens) const;

  // Calls visit(node, leading tokens of it that match) for each node on the way along `tokens`
  // from the end of `node`; the last one may match in part.
  template <class Visit>
  void walk(std::uint32_t node, std::uint32_t name_space, std::span<const Token> tokens, Visit visit) const {
    while (!tokens.empty()) {
      node = child(node, name_space, tokens.front());
      if (node == 0) return;
      const PrefixNode& entered = (*this)[node];
      // The edge has compared the first token; a node of one is not looked into.
      const std::uint32_t length = entered.length();
      const std::uint32_t same = length == 1 ? 1 : common_prefix(entered.tokens.view(), tokens);
      visit(node, same);
      if (same < length) return;
      tokens = tokens.subspan(same);
    }
  }

 private:
  static constexpr std::uint32_t kChunk = 256;
  struct Edge {
    std::uint32_t tag = 0;   // of the hash
    std::uint32_t node = 0;  // 0: empty
  };
  std::uint32_t tag_of(std::uint32_t parent, std::uint32_t name_space, Token token) const;
  std::size_t edge_of(std::uint32_t id) const;
  std::uint32_t reserve();  // a free id and room for its edge
  void link(std::uint32_t id);
  void unlink(std::uint32_t id);
  void grow_edges();

  EdgeHash hash_;
  std::vector<std::unique_ptr<PrefixNode[]>> chunks_;
  std::vector<std::uint32_t> free_ids_;
  std::uint32_t id_limit_ = 1;
  std::vector<Edge> edges_;  // open addressing, a power of two, at most 3/4 used
  std::uint32_t used_ = 0;
};

}  // namespace pykv
