// What the sequences of a cache should be, as plain lists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "pykv/types.h"

namespace fuzz {

using pykv::Pos;
using pykv::Span;
using pykv::Token;

inline constexpr Token kNoId = -1;

// A token of a sequence. `value` stands for its K and V: a hash of its namespace and of all
// tokens before it, so that a cell of anybody else, or an old one, has another.
struct Item {
  Pos position = 0;
  Pos written = 0;  // position that its K was written for: it has moved by the difference
  Token id = kNoId;
  std::uint64_t value = 0;
};

struct Sequence {
  std::uint32_t name_space = 0;
  std::vector<Item> items;
  Pos exact = 0;  // leading tokens, at positions from 0, whose ids and values are those of a cold run

  Pos end() const { return items.empty() ? 0 : items.back().position + 1; }
  Pos begin() const { return items.empty() ? 0 : items.front().position; }

  // The value of a token behind the last one.
  std::uint64_t next_value(Token id) const {
    const std::uint64_t before = items.empty() ? name_space + 1 : items.back().value;
    const std::uint64_t x = (before ^ static_cast<std::uint32_t>(id)) * 0x9e3779b97f4a7c15;
    return (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
  }
  void append(Token id) { items.push_back({end(), end(), id, next_value(id)}); }

  std::vector<Token> ids(std::size_t count) const {
    std::vector<Token> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(items[i].id);
    return out;
  }
  static bool is_in(const Item& item, Span span) {
    return item.position >= span.begin && item.position < span.end;
  }
  std::uint64_t count(Span span) const {
    return static_cast<std::uint64_t>(
        std::count_if(items.begin(), items.end(), [&](const Item& i) { return is_in(i, span); }));
  }
  std::optional<Pos> first_in(Span span) const {
    const auto at = std::find_if(items.begin(), items.end(), [&](const Item& i) { return is_in(i, span); });
    return at == items.end() ? std::nullopt : std::optional<Pos>(at->position);
  }
  // Position of the last token below `pos`, -1 if there is none.
  Pos last_before(Pos pos) const {
    Pos last = -1;
    for (const Item& item : items)
      if (item.position < pos) last = item.position;
    return last;
  }
  // Whether the tokens of a span can move and pass neither others nor the limits.
  bool has_room(Span span, Pos delta) const {
    std::int64_t lowest = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::int64_t position = std::int64_t{items[i].position} + (is_in(items[i], span) ? delta : 0);
      if (position < lowest || position >= pykv::kMaxPos) return false;
      const bool together = i + 1 < items.size() && is_in(items[i], span) == is_in(items[i + 1], span);
      lowest = together ? position : position + 1;
    }
    return true;
  }
  // Tokens of the span move; those below `exact` stay what they are.
  template <class To>
  void move(Span span, Pos exact_below, To to) {
    for (Item& item : items)
      if (is_in(item, span)) item.position = to(item.position);
    exact = std::min(exact, exact_below);
  }
  void remove(Span span) {
    if (count(span) == 0) return;
    std::erase_if(items, [&](const Item& i) { return is_in(i, span); });
    exact = std::min(exact, span.begin);
  }
};

}  // namespace fuzz
