// Pools of a million cells in the shapes that benchmarks/control_plane.py measures: one
// good one and the worst ones. Only bookkeeping is large; layers are the smallest possible.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pykv/cache.h"

namespace control_plane {

inline constexpr std::uint64_t kCells = 1'000'000;
inline constexpr std::uint32_t kPrompt = 4096;  // tokens of the prompt that is matched
inline constexpr std::uint32_t kLeaf = 9;       // tokens of a leaf that is evicted
inline constexpr std::uint32_t kSessions = 16;
inline constexpr std::uint32_t kWindow = 512;

// Ids of one token after the other, never twice in a pool: what shares nothing.
class Text {
 public:
  std::vector<pykv::Token> next(std::uint32_t length);

 private:
  pykv::Token next_ = 0;
};

struct Pool {
  explicit Pool(std::string shape_name);

  // One step of all requests, written with zeros and finished.
  void append(std::span<const pykv::StepRequest> requests);
  void append(pykv::SeqId seq, std::span<const pykv::Token> tokens);
  void append(pykv::SeqId seq, std::uint32_t count);
  // Forks `seq` `count` times, appends a leaf to each and erases them: idle leaves.
  void add_leaves(pykv::SeqId seq, std::uint32_t count);
  void write(pykv::Step& step);

  std::string name;
  pykv::Backend backend{pykv::BackendConfig{1, "scalar"}};
  pykv::CacheConfig config;
  std::unique_ptr<pykv::Cache> cache;
  pykv::BufferId zeros;
  Text text;
  std::vector<pykv::Token> prompt;    // in the pool
  pykv::SeqId source{};               // what is forked
  std::vector<pykv::SeqId> sessions;  // kSessions that take steps
};

// "tree": 100,000 nodes of some tokens each; "chain": one of 900,000 tokens, appended token
// by token, with branches; "star": one node with 100,000 children; "singles": every run of
// every sequence has length 1; "comb": a sequence ends at every token of the prompt; "windows":
// beside the layer that sees all of the prompt another one has a window of kWindow tokens.
std::vector<std::string> shapes();
std::unique_ptr<Pool> make_pool(const std::string& shape);

}  // namespace control_plane
