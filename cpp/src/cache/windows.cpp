// What sequences have in window pools, and from where they continue exactly.
#include <algorithm>
#include <utility>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

// The cell of a token in runs that begin at position 0 and have no gaps.
CellIndex cell_at(std::span<const Run> path, Pos pos) {
  const auto behind =
      std::upper_bound(path.begin(), path.end(), pos, [](Pos at, const Run& run) { return at < run.first; });
  const Run& run = *(behind - 1);
  return run.cell + static_cast<CellIndex>(pos - run.first);
}

// Whether the exact tokens of the list up to the one at `pos` are those of `path`: exact tokens
// are stored once, so that one cell tells of all before it.
bool is_on_path(const RunList& runs, std::span<const Run> path, Pos pos) {
  const std::optional<Run> run = runs.find(pos);
  return run && run->cell + static_cast<CellIndex>(pos - run->first) == cell_at(path, pos);
}

}  // namespace

std::vector<WindowRuns> Cache::Impl::empty_windows() {
  std::vector<WindowRuns> made;
  made.reserve(windows.size());
  for (CellPool& pool : windows) made.push_back({RunList(pool.cells)});
  return made;
}

void Cache::Impl::trim(Sequence& sequence) {
  if (sequence.in_step) return;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    WindowRuns& kept = sequence.windows[i];
    const Pos first = first_visible(sequence.end(), windows[i].window);
    if (first <= kept.kept_from) continue;
    kept.runs.remove_front(first);
    kept.kept_from = first;
  }
}

bool Cache::Impl::continues(const RunList& runs, std::span<const WindowRuns> kept) const {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::optional<Pos> lost = runs.previous(kept[i].kept_from);
    if (lost && *lost >= first_visible(runs.end(), windows[i].window)) return false;
  }
  return true;
}

Cache::Impl::Place Cache::Impl::continuation(std::span<const Run> path, Pos limit,
                                             std::optional<ResumePoints::PointId> point) const {
  Place best{.point = point};
  if (point) best.depth = static_cast<Pos>(points.depth(*point));
  const auto has_windows = [&](const Sequence& sequence, Pos depth) {
    for (std::size_t i = 0; i < windows.size(); ++i)
      if (sequence.windows[i].kept_from > first_visible(depth, windows[i].window)) return false;
    return true;
  };
  // A state is that of all tokens of its sequence, no more and no less.
  const auto has_state = [&](const Sequence& sequence, Pos depth) {
    return !states.is_used() || (depth == sequence.end() && depth == sequence.exact_upto);
  };
  for (const auto& [id, sequence] : sequences) {
    Pos depth = std::min(limit, sequence.exact_upto);
    if (depth <= best.depth || !has_state(sequence, depth)) continue;
    if (!is_on_path(sequence.runs, path, best.depth)) continue;
    if (!is_on_path(sequence.runs, path, depth - 1)) {
      if (states.is_used()) continue;
      Pos same = best.depth, other = depth - 1;  // positions on the path and off it
      while (other - same > 1) {
        const Pos middle = same + (other - same) / 2;
        (is_on_path(sequence.runs, path, middle) ? same : other) = middle;
      }
      depth = same + 1;
    }
    if (has_windows(sequence, depth)) best = {.depth = depth, .live = &sequence};
  }
  return best;
}

Cache::Impl::Place Cache::Impl::continuation(const Sequence& sequence, Pos limit) const {
  const Pos exact = std::min(limit, sequence.exact_upto);
  std::vector<Run> path;
  sequence.runs.for_each({0, exact}, [&](const Run& run) { path.push_back(run); });
  return continuation(path, exact, points.find(sequence.holder, static_cast<std::uint32_t>(exact)));
}

// Cells are shared run by run: a list in an open step must keep its nodes to itself.
std::vector<WindowRuns> Cache::Impl::windows_at(const Place& place) {
  std::vector<WindowRuns> made = empty_windows();
  for (std::size_t i = 0; i < made.size() && place.depth > 0; ++i) {
    made[i].kept_from = first_visible(place.depth, windows[i].window);
    const auto share = [&](const Run& run) { made[i].runs.append(run, RunList::Hold::share); };
    if (place.live != nullptr) {
      place.live->windows[i].runs.for_each({made[i].kept_from, place.depth}, share);
    } else {
      for (const Run& run : points.memory(*place.point).windows[i]) share(run);
    }
  }
  return made;
}

StateRef Cache::Impl::state_at(const Place& place) {
  if (!states.is_used() || place.depth == 0) return {};
  if (place.live != nullptr) return place.live->state;
  return StateRef::share(states, *points.memory(*place.point).state);
}

void Cache::Impl::refuse_edit(const Sequence& sequence, const char* method, Pos end) const {
  const Pos possible = continuation(sequence, std::min(end, sequence.runs.end())).depth;
  const std::string problem =
      states.is_used()
          ? std::string("a recurrent state is that of all tokens in their order, ") +
                (possible == end ? "so that those behind cannot stay without the ones from position "
                                 : "and nobody has kept one that ends at position ") +
                std::to_string(end)
          : "the next token of the sequence, at position " + std::to_string(end) +
                ", would see cells that its window pools no longer have";
  throw Unsupported(where(method) + problem + "; rewind() goes back to position " + std::to_string(possible) +
                    ", from where it is to be computed again, or " +
                    (states.is_used() ? "clear() the sequence" : kKeepAllCells));
}

void Cache::Impl::refuse_recurrent(const Sequence& sequence, const char* method) const {
  if (!states.is_used()) return;
  throw Unsupported(where(method) +
                    "recurrent layers have added up the tokens of the sequence in their order, so its " +
                    std::to_string(sequence.runs.tokens()) +
                    " tokens cannot move; rewind() to a resume point or clear() it, and compute again");
}

}  // namespace pykv
