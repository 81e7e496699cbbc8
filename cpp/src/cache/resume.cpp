// Resume points: when they are made, and how a sequence goes back to one.
#include <algorithm>
#include <new>
#include <utility>

#include "cache/edit.h"

namespace pykv {

bool Cache::Impl::add_point(Sequence& sequence, Pos depth) {
  if (!forgets() || depth < 1 || depth > sequence.exact_upto || points.counts().budget == 0) return false;
  ResumePoints::Memory memory;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const Pos first = first_visible(depth, windows[i].window);
    if (sequence.windows[i].kept_from > first) return false;
    std::vector<Run>& runs = memory.windows.emplace_back();
    sequence.windows[i].runs.for_each({first, depth}, [&](const Run& run) { runs.push_back(run); });
  }
  StateRef state = sequence.state;
  if (states.is_used()) {
    if (depth != sequence.runs.end() || !state) return false;
    memory.state = state.slot();
  }
  const bool made = points.add(sequence.holder, static_cast<std::uint32_t>(depth), std::move(memory));
  if (made && state) state.release();  // the point has the reference now
  points_made += made ? 1 : 0;
  return made;
}

// A resume point is a courtesy to who comes later, not worth a failure.
void Cache::Impl::add_points(Sequence& sequence, Pos begin) noexcept {
  const Pos end = sequence.exact_upto;
  if (end <= begin) return;
  try {
    if (const auto spacing = static_cast<Pos>(config.resume_spacing); spacing > 0) {
      for (Pos at = begin / spacing * spacing + spacing; at <= end; at += spacing) {
        add_point(sequence, at);
        if (at > kMaxPos - spacing) break;
      }
    }
    for (const Pos due : {sequence.branch, sequence.prompt_end})
      if (due > begin && due <= end) add_point(sequence, due);
  } catch (const std::bad_alloc&) {
  } catch (const Error&) {
  }  // check_integrity() reports it
}

void Cache::Impl::add_last_point(Sequence& sequence) noexcept {
  try {
    add_point(sequence, sequence.exact_upto);
  } catch (const std::bad_alloc&) {
  } catch (const Error&) {
  }  // check_integrity() reports it
}

Pos Cache::next_point(SeqId seq) const {
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  const Impl::Sequence& sequence = c.find(seq, "next_point");
  if (!c.states.is_used() || c.points.counts().budget == 0) return kMaxPos;
  const Pos end = sequence.end();
  Pos next = kMaxPos;
  for (const Pos due : {sequence.branch, sequence.prompt_end})
    if (due > end) next = std::min(next, due);
  const auto spacing = static_cast<Pos>(c.config.resume_spacing);
  if (spacing > 0 && end / spacing < kMaxPos / spacing) next = std::min(next, (end / spacing + 1) * spacing);
  return next;
}

bool Cache::mark_resume(SeqId seq) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "mark_resume");
  if (sequence.exact_upto != sequence.runs.end()) {
    throw InvalidArgument(where("mark_resume") + "the sequence ends at position " +
                          std::to_string(sequence.runs.end()) + " and is exact up to " +
                          std::to_string(sequence.exact_upto) +
                          " only; append token ids, and edit nothing before the end");
  }
  return c.add_point(sequence, sequence.exact_upto);
}

Pos Cache::rewind(SeqId seq, Pos position) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "rewind");
  if (position < 0 || position > sequence.end()) {
    throw InvalidArgument(where("rewind") + "position is " + std::to_string(position) +
                          ", must be 0 to the sequence's end " + std::to_string(sequence.end()));
  }
  if (position == sequence.end()) return position;
  RunList rest = sequence.runs;
  rest.truncate(position);
  if (!c.states.is_used() && c.continues(rest, sequence.windows)) {
    std::vector<WindowRuns> windows = sequence.windows;
    const Pos end = rest.end();
    for (WindowRuns& kept : windows) {
      kept.runs.truncate(position);
      kept.kept_from = std::min(kept.kept_from, end);
    }
    Edit(c, sequence, position).apply(std::move(rest), std::move(windows));
    return end;
  }
  const Impl::Place place = c.continuation(sequence, position);
  std::vector<WindowRuns> windows = c.windows_at(place);
  StateRef state = c.state_at(place);
  rest.truncate(place.depth);
  Edit edit(c, sequence, place.depth);
  if (place.point) {
    c.points.use(*place.point);
    ++c.points_used;
  }
  edit.apply(std::move(rest), std::move(windows), std::move(state));
  return place.depth;
}

}  // namespace pykv
