// Floor 1, internal. The marks of a prefix tree: of each node a list, by ascending depth.
//
// Marks are linked through one table, so that a node that splits or merges moves its marks
// without memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/prefix_tree_nodes.h"

namespace pykv {

class PrefixMarks {
 public:
  using MarkId = PrefixTree::MarkId;

  explicit PrefixMarks(PrefixNodes& nodes) : nodes_(nodes) {}

  // The mark of `node` at `depth`, which is in (start, start + ready].
  MarkId add(std::uint32_t node, std::uint32_t depth);
  void remove(MarkId mark);  // throws InvalidArgument if there is no such mark
  std::uint32_t depth(MarkId mark) const;
  // The deepest one of the node that is at most `limit` deep.
  std::optional<MarkId> deepest(std::uint32_t node, std::uint32_t limit) const;

  // `upper` has been split from `lower`: it gets the marks of its tokens.
  void follow_split(std::uint32_t upper, std::uint32_t lower) noexcept;
  // `first` and `last` are the ends of the list that the upper node had; its tokens are in
  // front of those of `merged` now.
  void follow_merge(std::uint32_t first, std::uint32_t last, std::uint32_t merged) noexcept;
  // Removes the marks behind `depth` and tells of them.
  void cut(std::uint32_t node, std::uint32_t depth);

  std::function<void(MarkId)> gone;
  std::uint32_t count() const { return count_; }
  void check_integrity() const;  // throws IntegrityError

 private:
  static constexpr std::uint32_t kFree = ~std::uint32_t{0};
  struct Mark {
    std::uint32_t node = kFree;  // kFree: `next` is the next free entry
    std::uint32_t depth = 0;
    std::uint32_t previous = 0, next = 0;  // entry + 1, 0: none
  };
  Mark& at(std::uint32_t link) { return marks_[link - 1]; }
  const Mark& at(std::uint32_t link) const { return marks_[link - 1]; }
  void unlink(std::uint32_t link) noexcept;
  const Mark& checked(MarkId mark, const char* method) const;

  PrefixNodes& nodes_;
  std::vector<Mark> marks_;
  std::uint32_t first_free_ = 0;  // entry + 1, 0: none
  std::uint32_t count_ = 0;
};

}  // namespace pykv
