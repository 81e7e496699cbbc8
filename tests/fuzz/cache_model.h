// What the sequences of a cache should be, as plain lists.
#pragma once

#include <algorithm>
#include <cstdint>
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
  Pos written = 0;  // position that its K was written for
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
  // Whether every token is where a model computed it, behind the one before.
  bool is_plain() const {
    for (std::size_t i = 0; i < items.size(); ++i)
      if (items[i].position != static_cast<Pos>(i) || items[i].written != items[i].position) return false;
    return true;
  }
  bool has_any(Span span) const {
    return std::any_of(items.begin(), items.end(),
                       [&](const Item& i) { return i.position >= span.begin && i.position < span.end; });
  }
  void remove(Span span) {
    if (!has_any(span)) return;
    std::erase_if(items, [&](const Item& i) { return i.position >= span.begin && i.position < span.end; });
    exact = std::min(exact, span.begin);
  }
};

}  // namespace fuzz
