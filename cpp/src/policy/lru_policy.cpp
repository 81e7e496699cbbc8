#include <algorithm>

#include "pykv/policy.h"

namespace pykv {
namespace {
constexpr std::size_t kArity = 4;
}

void LruPolicy::place(std::size_t slot, const Key& key) {
  heap_[slot] = key;
  slots_[key.node] = static_cast<std::uint32_t>(slot + 1);
}

void LruPolicy::sift_up(std::size_t slot, const Key& key) {
  while (slot > 0) {
    const std::size_t parent = (slot - 1) / kArity;
    if (!(key < heap_[parent])) break;
    place(slot, heap_[parent]);
    slot = parent;
  }
  place(slot, key);
}

void LruPolicy::sift_down(std::size_t slot, const Key& key) {
  while (true) {
    const std::size_t first = slot * kArity + 1;
    if (first >= heap_.size()) break;
    const std::size_t last = std::min(first + kArity, heap_.size());
    std::size_t least = first;
    for (std::size_t child = first + 1; child < last; ++child)
      if (heap_[child] < heap_[least]) least = child;
    if (!(heap_[least] < key)) break;
    place(slot, heap_[least]);
    slot = least;
  }
  place(slot, key);
}

void LruPolicy::reserve(std::uint32_t limit) {
  if (limit <= slots_.size()) return;
  const std::size_t ids = std::max<std::size_t>(limit, 2 * slots_.size());
  heap_.reserve(ids);
  slots_.resize(ids, 0);
}

void LruPolicy::candidate(const Candidate& facts) {
  const std::uint32_t node = facts.node.value;
  const Key key{facts.last_used, ~facts.depth, node};
  reserve(node + 1);
  if (slots_[node] == 0) {
    heap_.push_back(key);
    sift_up(heap_.size() - 1, key);
    return;
  }
  const std::size_t slot = slots_[node] - 1;
  if (key < heap_[slot])
    sift_up(slot, key);
  else
    sift_down(slot, key);
}

void LruPolicy::withdraw(NodeId node) {
  if (node.value >= slots_.size() || slots_[node.value] == 0) return;
  const std::size_t slot = slots_[node.value] - 1;
  const Key removed = heap_[slot];
  slots_[node.value] = 0;
  const Key last = heap_.back();
  heap_.pop_back();
  if (slot == heap_.size()) return;
  if (last < removed)
    sift_up(slot, last);
  else
    sift_down(slot, last);
}

std::optional<NodeId> LruPolicy::victim() const {
  if (heap_.empty()) return std::nullopt;
  return NodeId{heap_.front().node};
}

}  // namespace pykv
