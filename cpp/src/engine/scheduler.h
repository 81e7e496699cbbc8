// Floor 5. Who gets how many tokens of the next step. Pure: facts in, shares out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pykv/engine.h"
#include "pykv/types.h"

namespace pykv::engine {

// An admitted request, in order of precedence (priority, then arrival).
struct Work {
  NamespaceId name_space;
  std::span<const Token> tokens;  // prompt and what has been generated so far
  std::uint32_t stored = 0;       // how many of them have KV; < tokens.size()
  bool generating = false;        // its next token is one the engine generated
  bool follows = true;            // may use what others compute
  std::uint32_t draft = 0;        // further tokens guessed, of a generating one
  std::uint32_t pending() const { return static_cast<std::uint32_t>(tokens.size()) - stored; }
};

struct Share {
  std::uint32_t index = 0;   // into the works
  std::uint32_t tokens = 0;  // >= 1
};

// Overlaps shorter than this are computed twice instead of waiting one step for them,
// unless they are all that the follower needs.
inline constexpr std::uint32_t kWorthWaiting = 16;

// Shares of one step, by index. Of the first `parallel` works, each generating one gets
// its token and its draft; then prompts fill the budget in order. A prompt whose next tokens are being
// computed in this very step by an earlier one gets none: it takes them over afterwards.
std::vector<Share> schedule(std::span<const Work> works, const EngineLimits& limits);

}  // namespace pykv::engine
