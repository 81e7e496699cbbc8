// Edits of a sequence: removed, copied and moved spans, and what is exact afterwards.
#include <algorithm>
#include <utility>

#include "cache/edit.h"

namespace pykv {
namespace {

std::string text(Span span) {
  return "span [" + std::to_string(span.begin) + ", " + std::to_string(span.end) + ")";
}

// First position of the list in `span`, if it has one.
std::optional<Pos> first_in(const RunList& runs, Span span) {
  const std::optional<Pos> first = runs.next(span.begin);
  return first && *first < span.end ? first : std::nullopt;
}

}  // namespace

Span checked_span(std::optional<Span> span, Span bounds, const char* method) {
  if (!span) return bounds;
  if (span->begin >= 0 && span->begin <= span->end && span->end <= bounds.end) return *span;
  throw InvalidArgument(where(method) + text(*span) + " is not inside [0, " + std::to_string(bounds.end) +
                        ") or is reversed; bounds() tells the limits");
}

void Cache::Impl::remove(Sequence& sequence, Span gone, std::uint32_t forgotten) {
  if (!first_in(sequence.runs, gone)) return;
  RunList rest = sequence.runs;
  rest.remove(gone);
  StateRef state_left = state_without(sequence, gone, rest);
  std::vector<WindowRuns> windows_left = windows_without(sequence, gone, rest);
  Edit edit(*this, sequence, gone.begin);
  edit.forget(forgotten);
  edit.apply(std::move(rest), std::move(windows_left), std::move(state_left));
}

void Cache::remove(SeqId seq, std::optional<Span> span) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "remove");
  c.remove(sequence, checked_span(span, sequence.bounds(), "remove"), 0);
}

void Cache::discard(SeqId seq, Pos position) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "discard");
  const Span gone = checked_span(Span{position, sequence.bounds().end}, sequence.bounds(), "discard");
  const Pos fresh = std::max(position, sequence.published_from);
  c.remove(sequence, gone, static_cast<std::uint32_t>(std::max(sequence.exact_upto - fresh, 0)));
}

void Cache::clear(SeqId seq) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "clear");
  std::vector<WindowRuns> windows = c.empty_windows();
  Edit(c, sequence, 0).apply(RunList(c.base.cells), std::move(windows));
}

void Cache::copy(SeqId from, std::optional<Span> span, SeqId to) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  const Impl::Sequence& source = c.find_for_change(from, "copy");
  Impl::Sequence& target = c.find_for_change(to, "copy");
  const Span wanted = checked_span(span, source.bounds(), "copy");
  const std::optional<Pos> first = first_in(source.runs, wanted);
  if (!first) return;
  RunList runs = target.runs;
  try {
    runs.insert(source.runs, wanted);
  } catch (const InvalidArgument&) {
    throw InvalidArgument(where("copy") + "sequence " + std::to_string(to.value) + " has tokens in the " +
                          text(wanted) + "; remove() them first");
  }
  StateRef state = c.state_with(target, source, wanted);
  std::vector<WindowRuns> windows = c.windows_with(target, source, wanted, runs);
  if (target.runs.tokens() == 0 && *first == 0 && source.name_space == target.name_space)
    Edit(c, target, source, std::min(source.exact_upto, wanted.end))
        .apply(std::move(runs), std::move(windows), std::move(state));
  else
    Edit(c, target, *first).apply(std::move(runs), std::move(windows), std::move(state));
}

void Cache::shift(SeqId seq, std::optional<Span> span, Pos delta) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "shift");
  const Span moved = checked_span(span, sequence.bounds(), "shift");
  const std::optional<Pos> first = first_in(sequence.runs, moved);
  if (!first || delta == 0) return;
  c.refuse_recurrent(sequence, "shift");
  const bool rotates = c.rotates("shift");
  const RunList::ShiftRoom room = sequence.runs.shift_room(moved);
  if (!room.has(delta)) {
    throw InvalidArgument(where("shift") + "delta is " + std::to_string(delta) + "; the tokens in the " +
                          text(moved) + " can move by " + std::to_string(room.lowest) + " to " +
                          std::to_string(room.highest) +
                          " without passing others or the limits; remove() what is in the way");
  }
  RunList runs = sequence.runs;
  runs.shift(moved, delta, rotates ? delta : 0);
  std::vector<WindowRuns> windows = c.windows_shifted(sequence, moved, delta, rotates ? delta : 0);
  if (!c.continues(runs, windows)) c.refuse_edit(sequence, "shift", runs.end());
  Edit(c, sequence, *first).apply(std::move(runs), std::move(windows));
  c.straighten(sequence);
}

// Without the tokens of `gone`. Where the tail goes and the windows do not have what comes to be
// the end, a place where others have it will do.
std::vector<WindowRuns> Cache::Impl::windows_without(const Sequence& sequence, Span gone,
                                                     const RunList& rest) {
  if (!continues(rest, sequence.windows)) {
    const Place place = continuation(sequence, rest.end());
    if (place.depth != rest.end()) refuse_edit(sequence, "remove", rest.end());
    return windows_at(place);
  }
  std::vector<WindowRuns> kept = sequence.windows;
  for (WindowRuns& window : kept) {
    window.runs.remove(gone);
    window.kept_from = std::min(window.kept_from, rest.end());
  }
  return kept;
}

// What `target` has once it got the tokens of `wanted`; `runs` are all it has then.
std::vector<WindowRuns> Cache::Impl::windows_with(const Sequence& target, const Sequence& source, Span wanted,
                                                  const RunList& runs) {
  std::vector<WindowRuns> made = target.windows;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const WindowRuns& from = source.windows[i];
    const std::optional<Pos> lost = source.runs.previous(std::min(wanted.end, from.kept_from));
    if (lost && *lost >= wanted.begin) made[i].kept_from = std::max(made[i].kept_from, *lost + 1);
    made[i].runs.insert(from.runs, wanted);
    made[i].runs.remove({0, made[i].kept_from});
  }
  if (continues(runs, made)) return made;
  if (target.runs.tokens() == 0 && source.runs.begin() == 0 && wanted.begin == 0 &&
      wanted.end <= source.exact_upto) {
    const Place place = continuation(source, wanted.end);
    if (place.depth == wanted.end) return windows_at(place);
  }
  refuse_edit(source, "copy", runs.end());
}

// The order of tokens stays, so the last one that a window has lost stays the last one.
std::vector<WindowRuns> Cache::Impl::windows_shifted(const Sequence& sequence, Span moved, Pos delta,
                                                     Pos rotation) {
  std::vector<WindowRuns> made = sequence.windows;
  for (WindowRuns& kept : made) {
    const std::optional<Pos> lost = sequence.runs.previous(kept.kept_from);
    if (kept.runs.shift_room(moved).has(delta)) kept.runs.shift(moved, delta, rotation);
    if (lost)
      kept.kept_from = *lost + 1 + (*lost >= moved.begin && *lost < moved.end ? delta : 0);
    else
      kept.kept_from = 0;
  }
  return made;
}

// All tokens go, or those at the end and somebody has the state of what is left.
StateRef Cache::Impl::state_without(const Sequence& sequence, Span gone, const RunList& rest) {
  if (!states.is_used() || rest.tokens() == 0) return {};
  const Place place = continuation(sequence, gone.begin);
  if (rest.end() != gone.begin || place.depth != gone.begin) refuse_edit(sequence, "remove", gone.begin);
  return state_at(place);
}

// A copy of a beginning, for an empty sequence.
StateRef Cache::Impl::state_with(const Sequence& target, const Sequence& source, Span wanted) {
  if (!states.is_used()) return {};
  if (target.runs.tokens() != 0 || wanted.begin != 0) refuse_recurrent(source, "copy");
  if (wanted.end == source.end()) return source.state;
  const Place place = continuation(source, wanted.end);
  if (place.depth != wanted.end) refuse_edit(source, "copy", wanted.end);
  return state_at(place);
}

bool Cache::Impl::rotates(const char* method) const {
  bool any = false;
  for (std::uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const RopeParams* const known = rope(layer);
    if (known == nullptr) {
      throw Unsupported(where(method) + "the rope of layer " + std::to_string(layer) +
                        " is unknown, so its K cannot move to other positions; name it in the cache's "
                        "configuration (dims 0 if there is none), or use remove() and copy()");
    }
    any = any || known->dims != 0;
  }
  return any;
}

}  // namespace pykv
