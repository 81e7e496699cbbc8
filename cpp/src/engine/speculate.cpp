// Tokens that are guessed and computed ahead. Each is sampled as if it had been computed alone,
// with its own random number and the tokens before it, so the answer does not depend on guesses.
#include <algorithm>
#include <exception>
#include <utility>

#include "engine/loop.h"

namespace pykv::engine {

void StepLoop::draft() {
  // A recurrent state cannot take back a wrong guess.
  if (!cache_.config().recurrent.empty()) return;
  const auto decoded = std::min<std::size_t>(running_.size(), limits_.parallel);
  std::uint32_t room = limits_.batch_size - static_cast<std::uint32_t>(decoded);
  for (std::size_t i = 0; i < decoded; ++i) {
    Session& session = *running_[i];
    session.draft.clear();
    if (!session.generating()) continue;
    const std::uint32_t allowed = session.request.draft_max.value_or(limits_.draft_max);
    // The answer's last token is not computed.
    const std::uint32_t most = std::min({allowed, session.remaining() - 1, room});
    if (most == 0) continue;
    session.draft = session.lookup.draft(session.tokens, most);
    room -= static_cast<std::uint32_t>(session.draft.size());
  }
}

bool StepLoop::drop_drafts() {
  bool any = false;
  for (const SessionPtr& session : running_) any = !std::exchange(session->draft, {}).empty() || any;
  return any;
}

void StepLoop::verify(Session& session, std::span<const float> logits) {
  const RequestId id = session.id;
  const std::vector<Token> draft = std::exchange(session.draft, {});
  const std::size_t vocab = decoder_.vocab();
  const auto drafted = static_cast<std::uint32_t>(draft.size());
  std::uint32_t accepted = 0;
  for (std::uint32_t row = 0; row <= drafted; ++row) {
    const Token token = sample(session, logits.subspan(row * vocab, vocab));
    const bool right = row < drafted && token == draft[row];
    accepted += right ? 1 : 0;
    if (!right || running_find(id) == nullptr) break;
  }
  metrics_.draft(drafted, accepted);
  if (running_find(id) == nullptr) return;  // ended: its sequence is gone
  session.lookup.learn(drafted, accepted);
  const auto known = static_cast<std::uint32_t>(session.tokens.size()) - 1;
  if (known == session.stored) return;
  cache_.discard(*session.seq, static_cast<Pos>(known));
  session.stored = known;
}

}  // namespace pykv::engine
