// Sequences: create, open, fork, erase, and their places in the prefix tree.
#include <algorithm>
#include <new>
#include <unordered_set>
#include <utility>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

void check_tokens(std::span<const Token> tokens, const char* method) {
  if (tokens.size() > static_cast<std::size_t>(kMaxPos)) {
    throw InvalidArgument(where(method) + std::to_string(tokens.size()) + " tokens; the limit is " +
                          std::to_string(kMaxPos));
  }
  const auto negative = std::find_if(tokens.begin(), tokens.end(), [](Token t) { return t < 0; });
  if (negative != tokens.end()) {
    throw InvalidArgument(where(method) + "token id " + std::to_string(*negative) + " at index " +
                          std::to_string(negative - tokens.begin()) + " is negative; ids start at 0");
  }
}

template <class Map>
auto& lookup(Map& sequences, SeqId seq, const char* method) {
  const auto at = sequences.find(seq);
  if (at == sequences.end()) {
    throw InvalidArgument(where(method) + "sequence " + std::to_string(seq.value) +
                          " is not open; sequences() lists those that are");
  }
  return at->second;
}

std::uint32_t reusable(const PrefixMatch& match, std::size_t tokens, std::optional<std::uint32_t> limit) {
  if (tokens == 0) return 0;
  std::uint32_t reuse = std::min(match.tokens, static_cast<std::uint32_t>(tokens - 1));
  return limit ? std::min(reuse, *limit) : reuse;
}

}  // namespace

Cache::Impl::Sequence& Cache::Impl::find(SeqId seq, const char* method) {
  return lookup(sequences, seq, method);
}

const Cache::Impl::Sequence& Cache::Impl::find(SeqId seq, const char* method) const {
  return lookup(sequences, seq, method);
}

Cache::Impl::Sequence& Cache::Impl::find_for_change(SeqId seq, const char* method) {
  Sequence& sequence = find(seq, method);
  if (sequence.in_step) {
    throw Busy(where(method) + "sequence " + std::to_string(seq.value) +
               " is part of the open step; finish the step or roll it back first");
  }
  return sequence;
}

SeqId Cache::Impl::insert(Sequence sequence) {
  const SeqId seq{last_seq + 1};
  const PrefixTree::HolderId holder = sequence.holder;
  try {
    sequences.emplace(seq, std::move(sequence));
  } catch (...) {
    tree.detach(holder, now());
    throw;
  }
  ++last_seq;
  touch();
  return seq;
}

void Cache::Impl::drop(std::unordered_map<SeqId, Sequence>::iterator at) {
  // Who leaves in the middle of its prompt (to follow somebody, say) is no end of a turn.
  if (forgets() && !at->second.announced) add_last_point(at->second);
  withdraw_announcement(at->second);
  tree.detach(at->second.holder, now());
  for (std::size_t i = 0; i < pools(); ++i) pool(i).cells.drop_lease(at->first);
  sequences.erase(at);
  shrink_table();
  touch();
}

// A table keeps the buckets of all sequences that ever were there at once.
void Cache::Impl::shrink_table() noexcept {
  constexpr std::size_t kShare = 16, kSmall = 4096;
  if (sequences.bucket_count() < kSmall || sequences.size() > sequences.bucket_count() / kShare) return;
  try {
    sequences.rehash(4 * sequences.size());
  } catch (const std::bad_alloc&) {
  }  // it is only too large
}

void Cache::Impl::announce(Sequence& sequence, std::span<const Token> prompt) {
  try {
    auto copy = std::make_shared<const std::vector<Token>>(prompt.begin(), prompt.end());
    tree.grow(sequence.holder, sequence.name_space,
              prompt.subspan(static_cast<std::size_t>(sequence.exact_upto)));
    sequence.announced = std::move(copy);
  } catch (const std::bad_alloc&) {
    settle(sequence);  // it is a courtesy to others, not worth a failure
  }
}

void Cache::Impl::withdraw_announcement(Sequence& sequence) {
  if (sequence.announced) settle(sequence);
}

void Cache::Impl::settle(Sequence& sequence) {
  sequence.announced.reset();
  // Others may have made more of the path ready than this sequence has computed.
  const auto exact = static_cast<std::uint32_t>(sequence.exact_upto);
  sequence.exact_upto = static_cast<Pos>(tree.retract(sequence.holder, now(), exact));
}

SeqId Cache::create(NamespaceId ns) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  std::vector<WindowRuns> windows = c.empty_windows();
  return c.insert({.name_space = ns,
                   .runs = RunList(c.base.cells),
                   .holder = c.tree.attach(ns, {}, 0, c.now()),
                   .windows = std::move(windows)});
}

Cache::Opened Cache::open(NamespaceId ns, std::span<const Token> tokens,
                          std::optional<std::uint32_t> max_reuse) {
  check_tokens(tokens, "open");
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  const PrefixMatch match = c.tree.match(ns, tokens);
  const std::uint32_t there = reusable(match, tokens.size(), max_reuse);
  Impl::Place place{.depth = static_cast<Pos>(there)};
  if (c.forgets()) place = c.continuation(match.runs, place.depth, c.points.find(ns, tokens, there));
  const auto reuse = static_cast<std::uint32_t>(place.depth);

  RunList runs(c.base.cells);
  for (Run run : match.runs) {
    if (run.first >= static_cast<Pos>(reuse)) break;
    run.length = std::min(run.length, reuse - static_cast<std::uint32_t>(run.first));
    runs.append(run, RunList::Hold::share);
  }
  // What follows is announced, unless others have it ready and this sequence was told
  // not to use it: holding what it does not read would only keep it from eviction.
  const bool announce = match.tokens == there && there < tokens.size();
  std::vector<WindowRuns> windows = c.windows_at(place);
  const SeqId seq = c.insert({.name_space = ns,
                              .runs = std::move(runs),
                              .holder = c.tree.attach(ns, tokens, reuse, c.now()),
                              .exact_upto = place.depth,
                              .windows = std::move(windows),
                              .state = c.state_at(place),
                              .branch = reuse < there ? static_cast<Pos>(there) : 0,
                              .prompt_end = static_cast<Pos>(std::max<std::size_t>(tokens.size(), 1) - 1)});
  if (announce) c.announce(c.sequences.at(seq), tokens);
  c.match_query_tokens += tokens.size();
  c.match_hit_tokens += reuse;
  c.match_no_resume_point_tokens += there - reuse;
  if (place.point) {
    c.points.use(*place.point);
    ++c.points_used;
  }
  return {seq, reuse, match.tokens == reuse ? match.pending : 0, there - reuse};
}

std::uint32_t Cache::match(NamespaceId ns, std::span<const Token> tokens) const {
  check_tokens(tokens, "match");
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  if (!c.forgets()) return c.tree.match_length(ns, tokens);
  const PrefixMatch match = c.tree.match(ns, tokens);
  const auto point = c.points.find(ns, tokens, match.tokens);
  return static_cast<std::uint32_t>(c.continuation(match.runs, static_cast<Pos>(match.tokens), point).depth);
}

std::uint32_t Cache::stored(NamespaceId ns, std::span<const Token> tokens) const {
  check_tokens(tokens, "stored");
  const auto lock = impl_->link->lock();
  return impl_->tree.match_length(ns, tokens);
}

SeqId Cache::fork(SeqId seq) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  const Impl::Sequence& from = c.find_for_change(seq, "fork");
  std::vector<WindowRuns> windows = from.windows;
  return c.insert({.name_space = from.name_space,
                   .runs = from.runs,
                   .holder = c.tree.copy(from.holder),
                   .exact_upto = from.exact_upto,
                   .announced = from.announced,
                   .windows = std::move(windows),
                   .state = from.state,
                   .branch = from.branch,
                   .prompt_end = from.prompt_end});
}

void Cache::erase(SeqId seq) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  c.find_for_change(seq, "erase");
  c.drop(c.sequences.find(seq));
}

void Cache::Impl::keep(std::span<const SeqId> kept, const char* method) {
  std::unordered_set<SeqId> stay;
  for (const SeqId seq : kept) {
    find(seq, method);
    stay.insert(seq);
  }
  std::vector<SeqId> gone;
  for (const auto& [seq, sequence] : sequences) {
    if (stay.contains(seq)) continue;
    find_for_change(seq, method);
    gone.push_back(seq);
  }
  for (const SeqId seq : gone) drop(sequences.find(seq));
}

void Cache::keep(std::span<const SeqId> kept) {
  const auto lock = impl_->link->lock();
  impl_->keep(kept, "keep");
}

void Cache::erase_all() {
  const auto lock = impl_->link->lock();
  impl_->keep({}, "erase_all");
}

}  // namespace pykv
