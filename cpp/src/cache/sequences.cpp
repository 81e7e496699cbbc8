// Sequences: create, open, fork, remove, erase, and their places in the prefix tree.
#include <algorithm>
#include <new>
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

// Checks a span that must end where the sequence ends.
void check_tail(Span span, Pos end, const char* method) {
  if (span.begin < 0 || span.end < span.begin || span.end > end) {
    throw InvalidArgument(where(method) + "span [" + std::to_string(span.begin) + ", " +
                          std::to_string(span.end) + ") is not inside [0, " + std::to_string(end) +
                          ") or is reversed; bounds() tells the limits");
  }
  if (span.begin != span.end && span.end != end) {
    throw Unsupported(where(method) + "span [" + std::to_string(span.begin) + ", " +
                      std::to_string(span.end) + ") is not the tail; this build removes [x, " +
                      std::to_string(end) + ") only, or everything with clear()");
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

bool Cache::Impl::in_open_step(SeqId seq) const {
  if (open_step == nullptr) return false;
  const auto& items = open_step->plan->items;
  return std::any_of(items.begin(), items.end(), [&](const auto& item) { return item.seq == seq; });
}

Cache::Impl::Sequence& Cache::Impl::find_for_change(SeqId seq, const char* method) {
  Sequence& sequence = find(seq, method);
  if (in_open_step(seq)) {
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
  withdraw_announcement(at->second);
  tree.detach(at->second.holder, now());
  cells.drop_lease(at->first);
  sequences.erase(at);
  touch();
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
  tree.retract(sequence.holder, now());
  // Others may have made more of the path ready than this sequence has computed.
  const auto exact = static_cast<std::uint32_t>(sequence.exact_upto);
  if (tree.depth(sequence.holder) > exact) tree.rewind(sequence.holder, exact, now());
}

void Cache::Impl::rewind(Sequence& sequence, Pos end) {
  RunList rest = sequence.runs;
  rest.truncate(end);
  if (end < sequence.exact_upto) {
    withdraw_announcement(sequence);
    tree.rewind(sequence.holder, static_cast<std::uint32_t>(end), now());
    sequence.exact_upto = end;
  }
  sequence.runs = std::move(rest);
  touch();
}

SeqId Cache::create(NamespaceId ns) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  return c.insert({ns, RunList(c.cells), c.tree.attach(ns, {}, 0, c.now()), 0, nullptr});
}

Cache::Opened Cache::open(NamespaceId ns, std::span<const Token> tokens,
                          std::optional<std::uint32_t> max_reuse) {
  check_tokens(tokens, "open");
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  const PrefixMatch match = c.tree.match(ns, tokens);
  const std::uint32_t reuse = reusable(match, tokens.size(), max_reuse);

  RunList runs(c.cells);
  for (Run run : match.runs) {
    if (run.first >= static_cast<Pos>(reuse)) break;
    run.length = std::min(run.length, reuse - static_cast<std::uint32_t>(run.first));
    runs.append(run, RunList::Hold::share);
  }
  // What follows is announced, unless others have it ready and this sequence was told
  // not to use it: holding what it does not read would only keep it from eviction.
  const bool announce = match.tokens == reuse && reuse < tokens.size();
  const SeqId seq = c.insert(
      {ns, std::move(runs), c.tree.attach(ns, tokens, reuse, c.now()), static_cast<Pos>(reuse), nullptr});
  if (announce) c.announce(c.sequences.at(seq), tokens);
  c.match_query_tokens += tokens.size();
  c.match_hit_tokens += reuse;
  return {seq, reuse, match.tokens == reuse ? match.pending : 0};
}

std::uint32_t Cache::match(NamespaceId ns, std::span<const Token> tokens) const {
  check_tokens(tokens, "match");
  const auto lock = impl_->link->lock();
  return impl_->tree.match(ns, tokens).tokens;
}

SeqId Cache::fork(SeqId seq) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  const Impl::Sequence& from = c.find_for_change(seq, "fork");
  return c.insert({from.name_space, from.runs, c.tree.copy(from.holder), from.exact_upto, from.announced});
}

void Cache::remove(SeqId seq, Span span) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "remove");
  check_tail(span, sequence.runs.end(), "remove");
  if (span.begin != span.end) c.rewind(sequence, span.begin);
}

void Cache::clear(SeqId seq) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "clear");
  c.withdraw_announcement(sequence);
  c.rewind(sequence, 0);
}

void Cache::erase(SeqId seq) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  c.find_for_change(seq, "erase");
  c.drop(c.sequences.find(seq));
}

void Cache::erase_all() {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  if (c.open_step != nullptr) {
    throw Busy(where("erase_all") + "a step is open; finish it or roll it back first");
  }
  while (!c.sequences.empty()) c.drop(c.sequences.begin());
}

}  // namespace pykv
