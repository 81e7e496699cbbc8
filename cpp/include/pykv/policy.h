// Floor 1. Decisions, without tensors: ids, sizes, costs and an injected time only, so
// that the cache, a simulator and a preview run the same classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pykv/types.h"

namespace pykv {

// Which idle leaf of the prefix tree goes next. The tree calls candidate() whenever a
// node becomes evictable or its facts change, withdraw() when it stops being so.
class EvictionPolicy {
 public:
  struct Candidate {
    NodeId node;
    std::uint32_t cells = 0;  // what evicting it entirely would free
    std::uint32_t depth = 0;  // tokens from the root to its end
    double last_used = 0;     // seconds
    std::uint64_t hits = 0;   // matches through this node so far
  };
  virtual ~EvictionPolicy() = default;
  // Room for nodes with ids below `limit`: candidate() of those cannot fail, so that letting
  // go of a node cannot.
  virtual void reserve(std::uint32_t limit) = 0;
  virtual void candidate(const Candidate& facts) = 0;  // inserts or updates
  virtual void withdraw(NodeId node) = 0;              // no effect if unknown
  virtual std::optional<NodeId> victim() const = 0;    // does not remove it
  virtual std::size_t size() const = 0;
};

// Least recently used first; ties by depth (deeper first), then id: deterministic.
// All operations O(log n), victim() O(1). Node ids must be dense, as the tree's are:
// memory is 20 bytes per id up to the largest.
class LruPolicy final : public EvictionPolicy {
 public:
  void reserve(std::uint32_t limit) override;
  void candidate(const Candidate& facts) override;
  void withdraw(NodeId node) override;
  std::optional<NodeId> victim() const override;
  std::size_t size() const override { return heap_.size(); }

 private:
  struct Key {
    double last_used;
    std::uint32_t inverse_depth;
    std::uint32_t node;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  void place(std::size_t slot, const Key& key);
  void sift_up(std::size_t slot, const Key& key);
  void sift_down(std::size_t slot, const Key& key);

  std::vector<Key> heap_;             // 4-ary, smallest first
  std::vector<std::uint32_t> slots_;  // node id -> heap slot + 1; 0: not a candidate
};

// Free space at which reclaim starts (low) and stops (high), as fractions of the
// capacity, 0 <= low <= high <= 1.
struct Watermarks {
  double low = 0.05;
  double high = 0.10;
};
void validate(const Watermarks& marks);  // throws InvalidArgument

// Cells to reclaim now, 0 if free space is not below the low mark. Both marks count
// the cells as they are after `wanted` more have been taken.
std::uint32_t reclaim_target(const Watermarks& marks, std::uint32_t capacity, std::uint32_t free,
                             std::uint32_t wanted);

// Who gives way when cells run out: lowest priority, then the tenant furthest over its
// floor, then the youngest; never the oldest, so that one always progresses.
struct SessionFacts {
  std::uint64_t id = 0;
  int priority = 0;                    // higher is more important
  std::int64_t tenant_over_floor = 0;  // bytes
  std::uint64_t arrival = 0;           // strictly increasing
};
// Index into `sessions`, nullopt if there are fewer than two.
std::optional<std::size_t> choose_victim(std::span<const SessionFacts> sessions);

}  // namespace pykv
