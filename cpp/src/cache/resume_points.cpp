#include "cache/resume_points.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/cell_moves.h"
#include "pykv/errors.h"

namespace pykv {

ResumePoints::ResumePoints(PrefixTree& tree, Config config) : tree_(tree), config_(std::move(config)) {
  for (const Pool& pool : config_.pools) holders_.emplace_back(pool.cells->counts().capacity);
  counts_.budget = config_.budget;
  tree_.on_mark_gone([this](PointId gone) { forget(gone.value); });
}

ResumePoints::~ResumePoints() {
  tree_.on_mark_gone({});
  try {
    drop_all();
  } catch (const Error&) {
    // A map or the tree lost one of them before; check_integrity() reports it.
  }
}

void ResumePoints::check_runs(std::uint32_t depth, const Memory& memory) const {
  bool ok = memory.windows.size() == config_.pools.size();
  for (std::size_t i = 0; ok && i < memory.windows.size(); ++i) {
    Pos next = first_visible(static_cast<Pos>(depth), config_.pools[i].window);
    for (const Run& run : memory.windows[i]) {
      ok = ok && run.first == next && run.rotation == 0;
      next = run.end();
    }
    ok = ok && next == static_cast<Pos>(depth);
  }
  if (!ok)
    throw IntegrityError("[ResumePoints.add] the runs of a point at " + std::to_string(depth) +
                         " do not cover each pool's window up to there");
}

std::uint64_t ResumePoints::bytes_of(const Memory& memory) const {
  std::uint64_t bytes = memory.state ? config_.state_bytes : 0;
  for (std::size_t i = 0; i < memory.windows.size(); ++i)
    for (const Run& run : memory.windows[i]) bytes += run.length * config_.pools[i].bytes_per_cell;
  return bytes;
}

bool ResumePoints::add(PrefixTree::HolderId holder, std::uint32_t depth, Memory memory) {
  check_runs(depth, memory);
  if (bytes_of(memory) > counts_.budget || counts_.budget == 0) return false;
  const PointId mark = tree_.mark(holder, depth);
  if (mark.value < points_.size() && points_[mark.value].is_live) {
    use(mark);
    return false;
  }
  try {
    if (mark.value >= points_.size()) points_.resize(std::size_t{mark.value} + 1);
    hold(memory);
  } catch (...) {
    tree_.unmark(mark);
    throw;
  }
  Point& point = points_[mark.value];
  point.memory = std::move(memory);
  point.is_live = true;
  link(mark.value);
  ++counts_.points;
  if (point.memory.state) counts_.bytes += config_.state_bytes;
  while (counts_.bytes > counts_.budget && drop_oldest()) {
  }
  return true;
}

// All or nothing. Cells that no point has yet get the flag.
void ResumePoints::hold(const Memory& memory) {
  std::size_t pool = 0;
  std::vector<std::pair<std::size_t, CellSpan>> held;
  try {
    for (; pool < memory.windows.size(); ++pool) {
      std::vector<std::uint32_t>& holders = holders_[pool];
      for (const Run& run : memory.windows[pool]) {
        for (CellIndex at = run.cell, end = run.cell + run.length; at < end;) {
          const bool is_new = holders[at] == 0;
          const CellIndex begin = at;
          while (at < end && (holders[at] == 0) == is_new) ++at;
          held.emplace_back(pool, CellSpan{begin, at - begin});
          if (is_new) {
            try {
              config_.pools[pool].cells->set_in_tree({begin, at - begin});
            } catch (...) {
              held.pop_back();
              throw;
            }
            counts_.bytes += (at - begin) * config_.pools[pool].bytes_per_cell;
          }
          for (CellIndex cell = begin; cell < at; ++cell) ++holders[cell];
        }
      }
    }
  } catch (...) {
    for (const auto& [of, cells] : held) let_go(of, cells);
    throw;
  }
}

void ResumePoints::let_go(std::size_t pool, CellSpan cells) {
  std::vector<std::uint32_t>& holders = holders_[pool];
  const CellIndex end = cells.begin + cells.length;
  for (CellIndex cell = cells.begin; cell < end; ++cell) --holders[cell];
  for (CellIndex at = cells.begin; at < end;) {
    const CellIndex begin = at;
    while (at < end && holders[at] == 0) ++at;
    if (at > begin) {
      config_.pools[pool].cells->clear_in_tree({begin, at - begin});
      counts_.bytes -= (at - begin) * config_.pools[pool].bytes_per_cell;
    }
    while (at < end && holders[at] != 0) ++at;
  }
}

void ResumePoints::link(std::uint32_t id) noexcept {
  Point& point = points_[id];
  point.older = newest_;
  point.newer = kNone;
  (newest_ != kNone ? points_[newest_].newer : oldest_) = id;
  newest_ = id;
}

void ResumePoints::unlink(std::uint32_t id) noexcept {
  const Point& point = points_[id];
  (point.older != kNone ? points_[point.older].newer : oldest_) = point.newer;
  (point.newer != kNone ? points_[point.newer].older : newest_) = point.older;
}

void ResumePoints::use(PointId point) noexcept {
  unlink(point.value);
  link(point.value);
}

void ResumePoints::forget(std::uint32_t id) {
  if (id >= points_.size() || !points_[id].is_live) return;
  unlink(id);
  const Memory memory = std::move(points_[id].memory);
  points_[id] = {};
  --counts_.points;
  ++counts_.dropped;
  for (std::size_t pool = 0; pool < memory.windows.size(); ++pool)
    for (const Run& run : memory.windows[pool]) let_go(pool, {run.cell, run.length});
  if (!memory.state) return;
  counts_.bytes -= config_.state_bytes;
  if (config_.release_state) config_.release_state(*memory.state);
}

bool ResumePoints::drop_oldest() {
  if (oldest_ == kNone) return false;
  const std::uint32_t id = oldest_;
  tree_.unmark({id});
  forget(id);
  return true;
}

void ResumePoints::drop_all() {
  while (drop_oldest()) {
  }
}

std::optional<ResumePoints::PointId> ResumePoints::find(NamespaceId ns, std::span<const Token> tokens,
                                                        std::uint32_t limit) const {
  return counts_.points == 0 ? std::nullopt : tree_.deepest_mark(ns, tokens, limit);
}

std::optional<ResumePoints::PointId> ResumePoints::find(PrefixTree::HolderId holder,
                                                        std::uint32_t limit) const {
  return counts_.points == 0 ? std::nullopt : tree_.deepest_mark(holder, limit);
}

std::uint32_t ResumePoints::depth(PointId point) const { return tree_.mark_depth(point); }

const ResumePoints::Memory& ResumePoints::memory(PointId point) const {
  return points_.at(point.value).memory;
}

ResumePoints::Relocation::Relocation(ResumePoints& points, std::size_t pool, const CellMoves& moves)
    : points_(points), pool_(pool), moves_(moves) {
  for (std::uint32_t id = 0; id < points.points_.size(); ++id) {
    if (!points.points_[id].is_live) continue;
    std::vector<Run> runs;
    for (const Run& run : points.points_[id].memory.windows[pool]) {
      for (std::uint32_t i = 0; i < run.length; ++i) {
        const CellIndex cell = moves.target(run.cell + i);
        if (!runs.empty() && runs.back().cell + runs.back().length == cell)
          ++runs.back().length;
        else
          runs.push_back({run.first + static_cast<Pos>(i), cell, 1, 0});
      }
    }
    if (runs != points.points_[id].memory.windows[pool]) moved_.emplace_back(id, std::move(runs));
  }
}

void ResumePoints::Relocation::apply() noexcept {
  for (auto& [id, runs] : moved_) points_.points_[id].memory.windows[pool_] = std::move(runs);
  std::vector<std::uint32_t>& holders = points_.holders_[pool_];
  moves_.for_each([&](const CellMoves::Move& move) {
    for (std::uint32_t i = 0; i < move.from.length; ++i)
      holders[move.to + i] = std::exchange(holders[move.from.begin + i], 0);
  });
}

void ResumePoints::check_integrity() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw IntegrityError(std::string("[ResumePoints.check_integrity] ") + what);
  };
  std::uint32_t live = 0;
  std::uint64_t bytes = 0;
  std::vector<std::vector<std::uint32_t>> holders;
  for (const auto& pool : holders_) holders.emplace_back(pool.size());
  for (std::uint32_t id = 0; id < points_.size(); ++id) {
    const Point& point = points_[id];
    if (!point.is_live) continue;
    ++live;
    check_runs(tree_.mark_depth({id}), point.memory);
    if (point.memory.state) bytes += config_.state_bytes;
    for (std::size_t pool = 0; pool < holders.size(); ++pool)
      for (const Run& run : point.memory.windows[pool])
        for (std::uint32_t i = 0; i < run.length; ++i) ++holders[pool].at(run.cell + i);
  }
  require(live == counts_.points, "the number of points differs from a recount");
  require(holders == holders_, "the holders of cells differ from a recount");
  for (std::size_t pool = 0; pool < holders.size(); ++pool) {
    for (CellIndex cell = 0; cell < holders[pool].size(); ++cell) {
      require((holders[pool][cell] > 0) == config_.pools[pool].cells->in_tree(cell),
              "a flagged cell of a window pool is in no point, or the reverse");
      if (holders[pool][cell] > 0) bytes += config_.pools[pool].bytes_per_cell;
    }
  }
  require(bytes == counts_.bytes && bytes <= counts_.budget, "the bytes of points differ from a recount");
  std::uint32_t linked = 0;
  for (std::uint32_t id = oldest_; id != kNone; id = points_[id].newer) {
    require(points_[id].is_live && ++linked <= live, "the order of use names what is no point");
  }
  require(linked == live, "the order of use lacks a point");
}

}  // namespace pykv
