#include "engine/prompt_lookup.h"

#include <algorithm>
#include <cstddef>

namespace pykv::engine {

namespace {

constexpr std::size_t kLongestMatch = 3;
constexpr std::size_t kShortestMatch = 2;
constexpr std::uint32_t kLongestPause = 64;

// Where what followed the newest `n` tokens begins, the last time that they stood there; the
// number of tokens if they never did.
std::size_t last_place(std::span<const Token> tokens, std::size_t n) {
  const std::span<const Token> newest = tokens.last(n);
  for (std::size_t end = tokens.size() - 1; end >= n; --end)
    if (std::equal(newest.begin(), newest.end(), tokens.begin() + static_cast<std::ptrdiff_t>(end - n)))
      return end;
  return tokens.size();
}

}  // namespace

std::vector<Token> PromptLookup::draft(std::span<const Token> tokens, std::uint32_t most) {
  if (pause_ > 0) {
    --pause_;
    return {};
  }
  const std::uint32_t count = std::min(most, length_);
  std::vector<Token> out;
  for (std::size_t n = kLongestMatch; n >= kShortestMatch && out.empty() && count > 0; --n) {
    if (tokens.size() <= n) continue;
    const std::size_t place = last_place(tokens, n);
    // A text that repeats itself goes on by repeating what was just guessed.
    for (std::size_t i = place; i < place + count && place < tokens.size(); ++i)
      out.push_back(i < tokens.size() ? tokens[i] : out[i - tokens.size()]);
  }
  return out;
}

void PromptLookup::learn(std::uint32_t drafted, std::uint32_t accepted) {
  if (accepted == 0) {
    pause_ = std::min(1U << std::min(wrong_++, 31U), kLongestPause);
    length_ = 1;
    return;
  }
  wrong_ = 0;
  length_ = accepted == drafted ? std::min(2 * std::max(length_, accepted), kMaxDraft) : accepted + 1;
}

}  // namespace pykv::engine
