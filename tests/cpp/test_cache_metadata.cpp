// What a cache keeps beside K and V stays below 32 bytes for each of a million cells, with 100,000 small
// leaves.
#include <cstdint>
#include <optional>
#include <vector>

#include "allocations.h"
#include "check.h"
#include "pykv/backend.h"
#include "pykv/cache.h"

using namespace pykv;

namespace {

constexpr std::uint32_t kCells = 1'000'000, kLeaves = 100'000, kLeaf = 9, kBatch = 100, kPrompt = 4096;

struct Star {
  Backend backend{{.threads = 1, .isa = "scalar"}};
  Cache cache;
  Rows zeros;
  Token next = 0;  // ids of one token after the other

  Star() : cache(config(), backend), zeros{backend.create_buffer(kPrompt, 8), 0, 0, 8} {
    const SeqId trunk = cache.create();
    append({trunk}, kPrompt);
    for (std::uint32_t made = 0; made < kLeaves; made += kBatch) {
      std::vector<SeqId> leaves;
      for (std::uint32_t i = 0; i < kBatch; ++i) leaves.push_back(cache.fork(trunk));
      append(leaves, kLeaf);
      for (const SeqId leaf : leaves) cache.erase(leaf);
    }
  }

  static CacheConfig config() {
    LayerSpec layer;
    layer.kv_heads = 1;
    layer.k_dim = layer.v_dim = 8;
    CacheConfig out;
    out.layers = {layer};
    out.cells = kCells;
    return out;
  }

  void append(const std::vector<SeqId>& sequences, std::uint32_t tokens) {
    std::vector<std::vector<Token>> ids(sequences.size());
    std::vector<StepRequest> requests;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      for (std::uint32_t t = 0; t < tokens; ++t) ids[i].push_back(next++);
      requests.push_back({sequences[i], tokens, ids[i]});
    }
    std::optional<Plan> plan = cache.plan(requests);
    CHECK(plan.has_value());
    Step step = cache.commit(std::move(*plan));
    zeros.count = step.rows();
    step.write(0, zeros, zeros);
    step.finish();
  }
};

}  // namespace

TEST(metadata_of_a_star_is_below_32_bytes_per_cell) {
  const std::size_t before = allocations::bytes;
  const Star star;
  CHECK(star.cache.stats().tree_nodes >= kLeaves);
  CHECK(allocations::bytes - before <= std::size_t{32} * kCells);
}
