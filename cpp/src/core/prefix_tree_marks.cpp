#include "core/prefix_tree_marks.h"

#include <string>

#include "pykv/errors.h"

namespace pykv {

const PrefixMarks::Mark& PrefixMarks::checked(MarkId mark, const char* method) const {
  if (mark.value < marks_.size() && marks_[mark.value].node != kFree) return marks_[mark.value];
  throw InvalidArgument(std::string("[PrefixTree.") + method + "] mark " + std::to_string(mark.value) +
                        " is not in the tree; use an id that mark() gave and that is not gone");
}

std::uint32_t PrefixMarks::depth(MarkId mark) const { return checked(mark, "mark_depth").depth; }

PrefixMarks::MarkId PrefixMarks::add(std::uint32_t node, std::uint32_t depth) {
  std::uint32_t before = nodes_[node].last_mark;
  while (before != 0 && at(before).depth > depth) before = at(before).previous;
  if (before != 0 && at(before).depth == depth) return {before - 1};
  if (first_free_ == 0) {
    marks_.emplace_back();
    first_free_ = static_cast<std::uint32_t>(marks_.size());
  }
  const std::uint32_t link = first_free_;
  Mark& mark = at(link);
  first_free_ = mark.next;
  PrefixNode& owner = nodes_[node];
  const std::uint32_t after = before != 0 ? at(before).next : owner.first_mark;
  mark = {node, depth, before, after};
  (before != 0 ? at(before).next : owner.first_mark) = link;
  (after != 0 ? at(after).previous : owner.last_mark) = link;
  ++count_;
  return {link - 1};
}

void PrefixMarks::unlink(std::uint32_t link) noexcept {
  Mark& mark = at(link);
  PrefixNode& owner = nodes_[mark.node];
  (mark.previous != 0 ? at(mark.previous).next : owner.first_mark) = mark.next;
  (mark.next != 0 ? at(mark.next).previous : owner.last_mark) = mark.previous;
  mark = {kFree, 0, 0, first_free_};
  first_free_ = link;
  --count_;
}

void PrefixMarks::remove(MarkId mark) {
  checked(mark, "unmark");
  unlink(mark.value + 1);
}

std::optional<PrefixMarks::MarkId> PrefixMarks::deepest(std::uint32_t node, std::uint32_t limit) const {
  std::uint32_t link = nodes_[node].last_mark;
  while (link != 0 && at(link).depth > limit) link = at(link).previous;
  if (link == 0) return std::nullopt;
  return MarkId{link - 1};
}

void PrefixMarks::follow_split(std::uint32_t upper, std::uint32_t lower) noexcept {
  PrefixNode& above = nodes_[upper];
  PrefixNode& below = nodes_[lower];
  std::uint32_t last = 0;
  for (std::uint32_t link = below.first_mark; link != 0 && at(link).depth <= above.end();
       link = at(link).next) {
    at(link).node = upper;
    last = link;
  }
  if (last == 0) return;
  above.first_mark = below.first_mark;
  above.last_mark = last;
  below.first_mark = at(last).next;
  if (below.first_mark == 0)
    below.last_mark = 0;
  else
    at(below.first_mark).previous = 0;
  at(last).next = 0;
}

void PrefixMarks::follow_merge(std::uint32_t first, std::uint32_t last, std::uint32_t merged) noexcept {
  if (first == 0) return;
  PrefixNode& node = nodes_[merged];
  for (std::uint32_t link = first; link != 0; link = at(link).next) at(link).node = merged;
  at(last).next = node.first_mark;
  (node.first_mark != 0 ? at(node.first_mark).previous : node.last_mark) = last;
  node.first_mark = first;
}

void PrefixMarks::cut(std::uint32_t node, std::uint32_t depth) {
  while (nodes_[node].last_mark != 0 && at(nodes_[node].last_mark).depth > depth) {
    const std::uint32_t link = nodes_[node].last_mark;
    unlink(link);
    if (gone) gone({link - 1});
  }
}

void PrefixMarks::check_integrity() const {
  std::uint32_t seen = 0;
  const auto require = [](bool holds, std::uint32_t node) {
    if (!holds)
      throw IntegrityError("[PrefixTree.check_integrity] node " + std::to_string(node) +
                           ": its marks are not in order behind its ready tokens");
  };
  for (std::uint32_t id = 0; id < nodes_.id_limit(); ++id) {
    const PrefixNode& node = nodes_[id];
    std::uint32_t previous = 0, depth = node.start;
    for (std::uint32_t link = node.first_mark; link != 0; link = at(link).next) {
      const Mark& mark = at(link);
      require(mark.node == id && mark.previous == previous && mark.depth > depth, id);
      require(mark.depth <= node.start + node.ready, id);
      previous = link;
      depth = mark.depth;
      ++seen;
    }
    require(node.last_mark == previous, id);
  }
  require(seen == count_, 0);
}

}  // namespace pykv
