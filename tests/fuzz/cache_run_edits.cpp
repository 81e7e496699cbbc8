// Operations that edit a sequence: removed, copied, moved and divided spans.
#include "cache_run.h"

namespace fuzz {

using namespace pykv;

Span CacheRun::span_of(const Sequence& sequence) {
  const auto end = static_cast<std::uint32_t>(sequence.end());
  if (end > 0xffff) return {sequence.begin(), sequence.end()};
  std::uint32_t a = (bytes_.next() * 256U + bytes_.next()) % (end + 1);
  std::uint32_t b = (bytes_.next() * 256U + bytes_.next()) % (end + 1);
  if (a > b) std::swap(a, b);
  return {static_cast<Pos>(a), static_cast<Pos>(b)};
}

void CacheRun::remove() {
  const auto seq = pick();
  if (!seq) return;
  Sequence& sequence = model_.at(*seq);
  const Span span = span_of(sequence);
  const bool is_all = sequence.count(span) == sequence.items.size();
  const bool is_done = possible(*seq, [&] { cache_->remove(*seq, span); });
  if (is_done) sequence.remove(span);
  require(is_done || is_busy(*seq) || !is_all, name(*seq) + "not all of it can be removed");
}

void CacheRun::copy() {
  const auto from = pick(), to = pick();
  if (!from || !to || is_busy(*from) || is_busy(*to)) return;
  const Sequence source = model_.at(*from);
  Sequence& target = model_.at(*to);
  const Span span = span_of(source);
  std::vector<Item> copied;
  bool collides = false;
  for (const Item& item : source.items) {
    if (item.position < span.begin || item.position >= span.end) continue;
    copied.push_back(item);
    collides = collides || target.count({item.position, item.position + 1}) != 0;
  }
  try {
    if (!possible(*to, [&] { cache_->copy(*from, span, *to); })) return;
  } catch (const InvalidArgument&) {
    require(collides, "copy refuses what does not collide");
    return;
  }
  require(!collides, "copy takes what collides");
  if (copied.empty()) return;
  const Pos first = copied.front().position;
  const bool prefix = target.items.empty() && first == 0 && source.name_space == target.name_space;
  target.exact = prefix ? std::min(source.exact, span.end) : std::min(target.exact, first);
  target.items.insert(target.items.end(), copied.begin(), copied.end());
  std::stable_sort(target.items.begin(), target.items.end(),
                   [](const Item& a, const Item& b) { return a.position < b.position; });
}

void CacheRun::shift() {
  const auto seq = pick();
  if (!seq) return;
  Sequence& sequence = model_.at(*seq);
  const Span span = span_of(sequence);
  Pos delta = static_cast<Pos>(bytes_.next()) - 128;
  if (bytes_.below(16) == 0) delta = kMaxPos - sequence.end();
  const std::optional<Pos> first = sequence.first_in(span);
  const bool fits = !first || delta == 0 || sequence.has_room(span, delta);
  try {
    if (!possible(*seq, [&] { cache_->shift(*seq, span, delta); })) return;
  } catch (const InvalidArgument&) {
    require(!fits, name(*seq) + "shift refuses what fits");
    return;
  }
  require(fits, name(*seq) + "shift lets tokens pass others");
  if (first && delta != 0) sequence.move(span, *first, [&](Pos position) { return position + delta; });
}

void CacheRun::divide() {
  const auto seq = pick();
  if (!seq) return;
  Sequence& sequence = model_.at(*seq);
  const Span span = span_of(sequence);
  const auto divisor = static_cast<Pos>(bytes_.below(6));
  const std::optional<Pos> first = sequence.first_in(span);
  const bool moves = first && divisor > 1;
  const bool fits = divisor > 0 && !(moves && *first / divisor < sequence.last_before(span.begin));
  const CacheStats before = cache_->stats();
  try {
    if (!possible(*seq, [&] { cache_->divide(*seq, span, divisor); })) return;
  } catch (const InvalidArgument&) {
    require(!fits, name(*seq) + "divide refuses what fits");
    return;
  } catch (const OutOfCells&) {
    require(moves && before.cells_free < sequence.count(span), name(*seq) + "divide needs too many cells");
    return;
  }
  require(fits, name(*seq) + "divide lets tokens pass others");
  const CacheStats after = cache_->stats();
  const std::uint64_t copied = after.cells_copied - before.cells_copied;
  require(copied <= (moves && rope_.dims != 0 ? sequence.count(span) : 0), "divide copies other cells");
  require(before.cells_free <= after.cells_free + copied, "divide takes more cells than it copies");
  if (moves) sequence.move(span, *first / divisor, [&](Pos position) { return position / divisor; });
}

}  // namespace fuzz
