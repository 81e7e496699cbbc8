// Operations of caches with windows or recurrent layers, which cannot go on from every token.
#include "cache_run.h"

namespace fuzz {

using namespace pykv;

void CacheRun::rewind() {
  const auto seq = pick();
  if (!seq) return;
  Sequence& sequence = model_.at(*seq);
  if (sequence.end() > 0xffff) return;
  const auto wanted = static_cast<Pos>((bytes_.next() * 256U + bytes_.next()) %
                                       (static_cast<std::uint32_t>(sequence.end()) + 1));
  Pos reached = 0;
  if (!allowed(*seq, [&] { reached = cache_->rewind(*seq, wanted); })) return;
  require(reached >= 0 && reached <= wanted, name(*seq) + "rewinds to another place");
  sequence.remove({reached, kMaxPos});
}

void CacheRun::mark() {
  const auto seq = pick();
  if (!seq) return;
  const Sequence& sequence = model_.at(*seq);
  const bool is_exact = sequence.exact == sequence.end();
  try {
    if (!allowed(*seq, [&] { cache_->mark_resume(*seq); })) return;
  } catch (const InvalidArgument&) {
    require(!is_exact, name(*seq) + "its exact end cannot be marked");
    return;
  }
  require(is_exact, name(*seq) + "an end that is not exact is marked");
}

void CacheRun::room() {
  const CacheStats before = cache_->stats();
  cache_->make_room(bytes_.next());
  const CacheStats after = cache_->stats();
  for (std::size_t i = 0; i < before.pools.size(); ++i)
    require(after.pools[i].cells_free >= before.pools[i].cells_free, "making room takes cells");
  require(after.states.slots_used <= before.states.slots_used, "making room takes slots");
}

// A state stands for all tokens before: it is the value of the last one.
void CacheRun::pass_states() {
  std::vector<float> expected, next;
  for (const SeqId seq : step_order_) {
    put_state(model_.at(seq), expected);
    put_state(after_step_.at(seq), next);
  }
  std::vector<float> found(expected.size());
  step_->read_states(*state_layer_, found);
  require(found == expected, "a step begins with another state");
  step_->write_states(*state_layer_, next);
}

void CacheRun::put_state(const Sequence& sequence, std::vector<float>& states) {
  if (sequence.items.empty())
    states.resize(states.size() + kValueBytes);
  else
    put_v(sequence.items.back(), states);
}

}  // namespace fuzz
