// Floor 2. How one attention call is cut up: blocks of queries that read the same KV head,
// partitions that hold a slot, and which blocks visit a partition together. Kept from call to
// call, so that a step allocates nothing once it has grown.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "pykv/backend.h"

namespace pykv::cpu {

inline constexpr std::uint32_t kPartition = kPartitionPositions;

// A partition in which a group has tokens. Empty ones are never visited.
struct Partition {
  std::uint32_t number;   // slots [number * 256, number * 256 + 256)
  std::uint32_t segment;  // of the batch, the group's first with a slot in it
};

// Up to kQueryBlock queries of one group and KV head. Query i of a group is row i / share,
// head i % share of those that read the same KV head.
struct QueryBlock {
  const AttentionGroup* group;
  std::uint32_t kv_head;
  std::uint32_t first;
  std::uint32_t count;
  std::uint32_t first_partition, partitions;  // that its queries see, into AttentionCut::partitions
  // If it is visited: its number in AttentionCut::visited, its first partition's in places.
  std::uint32_t number, first_place;
};

// Blocks that read one partition together: one, or several of groups that have it in the same
// cells. K and V are then decoded once for all of them.
struct Visit {
  std::uint32_t partition;            // of the first block
  std::uint32_t first_block, blocks;  // in AttentionCut::visitors
  std::uint32_t queries;              // at most kQueryBlock
  std::size_t first_query;            // of all visits one after the other
};

// A partition that all queries of a small group see from end to end.
struct Sight {
  std::uint32_t number;
  std::uint32_t partition;  // in AttentionCut::partitions
  const QueryBlock* block;  // the group's for KV head 0; those of the others follow it
};

// Where the partial result of a block and partition lies: behind so many queries of a visit.
struct Place {
  std::uint32_t visit, query;
};

struct AttentionCut {
  std::vector<Partition> partitions;  // of the groups, one after the other
  std::vector<QueryBlock> blocks;     // of the groups, of their KV heads
  // Blocks are done as a whole, one task each, or by visits, which are merged later.
  std::vector<const QueryBlock*> whole, visited;
  std::vector<Visit> visits;
  std::vector<const QueryBlock*> visitors;
  std::vector<Place> places;
  std::vector<Sight> sights;
  std::vector<std::atomic<std::uint32_t>> left;  // visits of a visited block that are not done yet

  std::size_t visiting_queries() const {
    return visits.empty() ? 0 : visits.back().first_query + visits.back().queries;
  }
  void clear();
  void begin_visits();  // all are left; throws bad_alloc
};

}  // namespace pykv::cpu
