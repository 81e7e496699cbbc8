#include "pykv/prefix_tree.h"

#include <algorithm>
#include <string>

#include "core/prefix_tree_impl.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

void add_span(std::vector<Run>& runs, CellSpan span) {
  if (!runs.empty() && runs.back().cell + runs.back().length == span.begin)
    runs.back().length += span.length;
  else
    runs.push_back({runs.empty() ? 0 : runs.back().end(), span.begin, span.length, 0});
}

void add_runs(std::vector<Run>& runs, const PrefixNode& node, std::uint32_t tokens) {
  for (const CellSpan span : node.cells.view()) {
    if (tokens == 0) return;
    const std::uint32_t length = std::min(tokens, span.length);
    add_span(runs, {span.begin, length});
    tokens -= length;
  }
}

// The cells of `runs` at positions [begin, end).
std::vector<CellSpan> clipped(std::span<const Run> runs, std::uint32_t begin, std::uint32_t end) {
  std::vector<CellSpan> spans;
  spans.reserve(runs.size());
  for (const Run& run : runs) {
    const auto first = static_cast<std::uint32_t>(run.first);
    const std::uint32_t from = std::max(first, begin), to = std::min(first + run.length, end);
    if (from < to) spans.push_back({run.cell + (from - first), to - from});
  }
  return spans;
}

// Hands spans out in pieces.
class CellCursor {
 public:
  explicit CellCursor(std::span<const CellSpan> spans) : rest_(spans) {}

  CellSpan next(std::uint32_t limit) {
    const CellSpan span = rest_.front();
    const std::uint32_t length = std::min(span.length - used_, limit);
    const CellSpan piece{span.begin + used_, length};
    used_ += length;
    if (used_ == span.length) {
      rest_ = rest_.subspan(1);
      used_ = 0;
    }
    return piece;
  }

 private:
  std::span<const CellSpan> rest_;
  std::uint32_t used_ = 0;  // cells of the first one that are handed out
};

}  // namespace

PrefixTree::PrefixTree(CellMap& cells, EvictionPolicy& policy, EdgeHash hash)
    : impl_(std::make_unique<Impl>(cells, policy, hash)) {}

PrefixTree::~PrefixTree() {
  try {
    for (std::uint32_t id = 1; id < impl_->nodes.id_limit(); ++id) {
      impl_->withdraw(id);
      impl_->unflag(impl_->nodes[id].cells.view());
    }
  } catch (const IntegrityError&) {
    // The map lost a flag before; its check_integrity() reports it, ending here would not.
  }
}

const TreeCounts& PrefixTree::counts() const { return impl_->counts; }

PrefixMatch PrefixTree::match(NamespaceId ns, std::span<const Token> tokens) const {
  PrefixMatch match;
  impl_->nodes.walk(Impl::kRoot, ns.value, tokens, [&](std::uint32_t id, std::uint32_t same) {
    const PrefixNode& node = impl_->nodes[id];
    const std::uint32_t ready = std::min(same, node.ready);
    add_runs(match.runs, node, ready);
    match.tokens += ready;
    match.pending += same - ready;
  });
  return match;
}

std::uint32_t PrefixTree::match_length(NamespaceId ns, std::span<const Token> tokens) const {
  std::uint32_t length = 0;
  impl_->nodes.walk(Impl::kRoot, ns.value, tokens, [&](std::uint32_t id, std::uint32_t same) {
    length += std::min(same, impl_->nodes[id].ready);
  });
  return length;
}

PrefixTree::HolderId PrefixTree::attach(NamespaceId ns, std::span<const Token> tokens, std::uint32_t depth,
                                        double now) {
  if (depth > tokens.size())
    throw IntegrityError("[PrefixTree.attach] depth " + std::to_string(depth) + " of " +
                         std::to_string(tokens.size()) + " tokens");
  const auto reach = impl_->nodes.follow(Impl::kRoot, ns.value, tokens.first(depth));
  if (reach.matched < depth)
    throw IntegrityError("[PrefixTree.attach] only " + std::to_string(reach.matched) + " of " +
                         std::to_string(depth) + " tokens are in the tree; match() tells how many");
  const std::uint32_t end = impl_->end_of(reach);
  HolderId holder;
  try {
    holder = impl_->new_holder(end);
  } catch (...) {
    impl_->merge(end);
    throw;
  }
  for (std::uint32_t at = end; at != Impl::kRoot; at = impl_->nodes[at].parent) {
    PrefixNode& node = impl_->nodes[at];
    node.last_used = std::max(node.last_used, now);
    ++node.hits;
  }
  return holder;
}

PrefixTree::HolderId PrefixTree::copy(HolderId holder) {
  return impl_->new_holder(impl_->node_of(holder, "copy"));
}

void PrefixTree::detach(HolderId holder, double now, std::uint32_t forgotten) {
  const std::uint32_t node = impl_->node_of(holder, "detach");
  const PrefixNode& last = impl_->nodes[node];
  const bool alone = last.holders == 1 && last.children == 0 && last.ready > 0;
  impl_->holder_nodes[holder.value] = Impl::kFreeHolder | impl_->first_free_holder;
  impl_->first_free_holder = holder.value;
  --impl_->counts.holders;
  impl_->release(node, now);
  if (alone && forgotten > 0) impl_->trim(node, std::min(forgotten, impl_->nodes[node].length()));
}

std::uint32_t PrefixTree::depth(HolderId holder) const {
  return impl_->nodes[impl_->node_of(holder, "depth")].end();
}

void PrefixTree::rewind(HolderId holder, std::uint32_t depth, double now) {
  const std::uint32_t node = impl_->node_of(holder, "rewind");
  const std::uint32_t end = impl_->nodes[node].end();
  if (depth > end)
    throw InvalidArgument("[PrefixTree.rewind] depth " + std::to_string(depth) +
                          " is behind the holder, which is at " + std::to_string(end));
  if (depth == end) return;
  std::uint32_t place = impl_->ancestor_at(node, depth);
  if (depth < impl_->nodes[place].end()) place = impl_->split(place, depth - impl_->nodes[place].start);
  impl_->hold(place);
  impl_->holder_nodes[holder.value] = place;
  impl_->release(node, now);
}

void PrefixTree::grow(HolderId holder, NamespaceId ns, std::span<const Token> tokens) {
  const std::uint32_t from = impl_->node_of(holder, "grow");
  const std::uint32_t depth = impl_->nodes[from].end();
  if (tokens.size() > static_cast<std::size_t>(kMaxPos) - depth)
    throw InvalidArgument("[PrefixTree.grow] " + std::to_string(tokens.size()) + " tokens behind depth " +
                          std::to_string(depth) + " pass the last position " + std::to_string(kMaxPos));
  const auto reach = impl_->nodes.follow(from, ns.value, tokens);
  std::uint32_t end = impl_->end_of(reach);
  const std::span<const Token> rest = tokens.subspan(reach.matched);
  try {
    if (!rest.empty()) end = impl_->extend(end, end == from ? 1 : 0, ns, rest);
  } catch (...) {
    impl_->merge(end);
    throw;
  }
  if (end == from) return;
  impl_->hold(end);
  impl_->holder_nodes[holder.value] = end;
  --impl_->nodes[from].holders;
  impl_->settle(from);
}

std::uint32_t PrefixTree::publish(HolderId holder, std::uint32_t begin, std::span<const Run> runs,
                                  double now) {
  const std::uint32_t last = impl_->node_of(holder, "publish");
  const std::uint32_t ready = impl_->ready_depth(last);
  const std::uint32_t end = impl_->checked_end(last, begin, runs);
  if (end <= ready) return 0;
  const std::vector<CellSpan> spans = clipped(runs, ready, end);
  impl_->prepare_path(impl_->ancestor_at(last, end), ready, end, spans.size());
  impl_->flag(spans);  // the last step that can fail
  CellCursor cursor(spans);
  for (const std::uint32_t id : impl_->path) {
    PrefixNode& node = impl_->nodes[id];
    const std::uint32_t goal = std::min(end, node.end()) - node.start;
    while (node.ready < goal) {
      const CellSpan span = cursor.next(goal - node.ready);
      node.cells.append(span);
      node.ready += span.length;
    }
    node.last_used = std::max(node.last_used, now);
  }
  impl_->counts.ready_tokens += end - ready;
  return end - ready;
}

std::vector<Run> PrefixTree::path_runs(HolderId holder, std::uint32_t begin, std::uint32_t end) const {
  const std::uint32_t last = impl_->node_of(holder, "path_runs");
  if (begin > end || end > impl_->ready_depth(last))
    throw InvalidArgument("[PrefixTree.path_runs] tokens [" + std::to_string(begin) + ", " +
                          std::to_string(end) + ") are not all ready on the holder's path");
  std::vector<Run> runs;  // from the last one backwards
  for (std::uint32_t at = impl_->ancestor_at(last, end); at != Impl::kRoot; at = impl_->nodes[at].parent) {
    const PrefixNode& node = impl_->nodes[at];
    std::uint32_t stop = node.start + node.ready;
    for (std::size_t i = node.cells.view().size(); i-- > 0 && stop > begin;) {
      const CellSpan span = node.cells.view()[i];
      const std::uint32_t first = stop - span.length;
      const std::uint32_t from = std::max(first, begin), to = std::min(stop, end);
      if (from < to) runs.push_back({static_cast<Pos>(from), span.begin + (from - first), to - from, 0});
      stop = first;
    }
    if (node.start <= begin) break;
  }
  std::reverse(runs.begin(), runs.end());
  return runs;
}

std::uint32_t PrefixTree::retract(HolderId holder, double now, std::uint32_t depth) {
  const std::uint32_t node = impl_->node_of(holder, "retract");
  PrefixNodes& nodes = impl_->nodes;
  const std::uint32_t ready = impl_->ready_depth(node);
  const std::uint32_t goal = std::min(ready, depth);
  if (goal == nodes[node].end()) return goal;
  std::uint32_t place = impl_->ancestor_at(node, goal);
  if (place == node && goal == ready && nodes[node].holders == 1 && nodes[node].children == 0) {
    impl_->drop_announced(node);
    nodes[node].last_used = std::max(nodes[node].last_used, now);
    return goal;
  }
  if (goal < nodes[place].end()) place = impl_->split_or_above(place, goal - nodes[place].start);
  const std::uint32_t reached = nodes[place].end();
  impl_->hold(place);
  impl_->holder_nodes[holder.value] = place;
  impl_->release(node, now);
  return reached;
}

PrefixTree::MarkId PrefixTree::mark(HolderId holder, std::uint32_t depth) {
  const std::uint32_t last = impl_->node_of(holder, "mark");
  if (depth == 0 || depth > impl_->ready_depth(last))
    throw InvalidArgument("[PrefixTree.mark] depth is " + std::to_string(depth) +
                          "; it must be 1 to the holder's " + std::to_string(impl_->ready_depth(last)) +
                          " ready tokens");
  return impl_->marks.add(impl_->ancestor_at(last, depth), depth);
}

void PrefixTree::unmark(MarkId mark) { impl_->marks.remove(mark); }

std::uint32_t PrefixTree::mark_depth(MarkId mark) const { return impl_->marks.depth(mark); }

std::optional<PrefixTree::MarkId> PrefixTree::deepest_mark(NamespaceId ns, std::span<const Token> tokens,
                                                           std::uint32_t limit) const {
  std::optional<MarkId> found;
  impl_->nodes.walk(Impl::kRoot, ns.value, tokens, [&](std::uint32_t id, std::uint32_t same) {
    const std::uint32_t end = impl_->nodes[id].start + same;
    if (const auto mark = impl_->marks.deepest(id, std::min(end, limit))) found = mark;
  });
  return found;
}

std::optional<PrefixTree::MarkId> PrefixTree::deepest_mark(HolderId holder, std::uint32_t limit) const {
  const std::uint32_t last = impl_->node_of(holder, "deepest_mark");
  for (std::uint32_t at = impl_->ancestor_at(last, limit); at != Impl::kRoot; at = impl_->nodes[at].parent)
    if (const auto mark = impl_->marks.deepest(at, limit)) return mark;
  return std::nullopt;
}

void PrefixTree::on_mark_gone(std::function<void(MarkId mark)> call) { impl_->marks.gone = std::move(call); }

std::uint32_t PrefixTree::evict(std::uint32_t cells, double /*now*/) {
  const std::uint32_t free_before = impl_->cells.counts().free;
  while (cells > 0) {
    const std::optional<NodeId> victim = impl_->policy.victim();
    if (!victim) break;
    if (victim->value >= impl_->nodes.id_limit() || !impl_->nodes[victim->value].is_candidate)
      throw IntegrityError("[PrefixTree.evict] the policy named node " + std::to_string(victim->value) +
                           ", which is no candidate");
    impl_->trim(victim->value, std::min(cells, impl_->nodes[victim->value].length()));
    const std::uint32_t freed = impl_->cells.counts().free - free_before;
    if (freed > 0) return freed;
  }
  return 0;
}

}  // namespace pykv
