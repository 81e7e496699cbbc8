// A prefix tree with its cells and policy, for tests.
#pragma once

#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "find_cells.h"
#include "pykv/errors.h"
#include "pykv/prefix_tree.h"

namespace prefix_tree_world {

using namespace pykv;

using Tokens = std::vector<Token>;
using HolderId = PrefixTree::HolderId;

constexpr NamespaceId ns{0}, other_ns{1};

inline std::uint64_t constant_hash(std::uint32_t, std::uint32_t, Token) { return 42; }

inline Tokens range(Token begin, Token end) {
  Tokens tokens(static_cast<std::size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Least recently used first, and shows what the tree told it.
struct RecordingLru final : EvictionPolicy {
  void reserve(std::uint32_t limit) override { lru.reserve(limit); }
  void candidate(const Candidate& facts) override {
    known[facts.node] = facts;
    lru.candidate(facts);
  }
  void withdraw(NodeId node) override {
    known.erase(node);
    lru.withdraw(node);
  }
  std::optional<NodeId> victim() const override { return lru.victim(); }
  std::size_t size() const override { return lru.size(); }

  std::map<NodeId, Candidate> known;
  LruPolicy lru;
};

struct World {
  explicit World(std::uint32_t blocks, EdgeHash hash = default_edge_hash)
      : map(blocks), tree(map, lru, hash) {}

  // A session that computes `tokens` from the matching prefix on, and stays.
  HolderId compute(const Tokens& tokens, NamespaceId space = ns) {
    const auto matched = tree.match(space, tokens).tokens;
    const HolderId holder = tree.attach(space, tokens, matched, ++now);
    tree.grow(holder, space, std::span(tokens).subspan(matched));
    publish(holder, matched, static_cast<std::uint32_t>(tokens.size()));
    return holder;
  }

  // Publishes [begin, end) in new cells that no sequence keeps.
  std::uint32_t publish(HolderId holder, std::uint32_t begin, std::uint32_t end) {
    const std::vector<Run> runs = take(begin, end - begin);
    const std::uint32_t ready = tree.publish(holder, begin, runs, ++now);
    for (const Run& run : runs) map.drop_holder({run.cell, run.length});
    return ready;
  }

  std::vector<Run> take(std::uint32_t begin, std::uint32_t count) {
    const CellRequest request{SeqId{1}, count, std::nullopt};
    std::vector<Run> runs;
    const auto found = find_cells(map, {&request, 1});
    if (!found) throw OutOfCells("the test's pool is too small");
    for (const CellSpan span : found->front()) {
      map.take(SeqId{1}, span);
      runs.push_back({static_cast<Pos>(begin), span.begin, span.length, 0});
      begin += span.length;
    }
    return runs;
  }

  void check() const {
    map.check_integrity();
    tree.check_integrity();
  }

  CellMap map;
  RecordingLru lru;
  PrefixTree tree;
  double now = 0;
};

}  // namespace prefix_tree_world
