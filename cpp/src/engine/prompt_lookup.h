// Floor 5. Guesses what comes next from what a session already says: the tokens that followed the
// last place where its newest ones stand. How many it guesses follows how many were right.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pykv/types.h"

namespace pykv::engine {

inline constexpr std::uint32_t kMaxDraft = 32;

class PromptLookup {
 public:
  // At most `most` tokens after `tokens`; none if nothing in them says so, or if the last guesses
  // were wrong and it waits. Once a token.
  std::vector<Token> draft(std::span<const Token> tokens, std::uint32_t most);
  // How many of the drafted tokens, >= 1, were right.
  void learn(std::uint32_t drafted, std::uint32_t accepted);

 private:
  std::uint32_t length_ = 4;  // of the next draft
  std::uint32_t wrong_ = 0;   // drafts in a row of which nothing was right
  std::uint32_t pause_ = 0;   // tokens until the next draft
};

}  // namespace pykv::engine
