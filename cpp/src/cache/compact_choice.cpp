#include <algorithm>

#include "cache/compact.h"
#include "core/cell_bits.h"

namespace pykv {
namespace {

// A block with more held cells than this is not worth emptying.
constexpr std::uint32_t kNearlyEmpty = kBlockCells / 2;
// Runs that long stay; so many shorter ones make it worth moving them.
constexpr std::uint32_t kLongRun = 16;
constexpr std::size_t kFewRuns = 4;

std::uint32_t held(std::uint64_t free) { return kBlockCells - bits::count(free); }

}  // namespace

Evacuation::Evacuation(const CellMap& cells, CellMoves& moves, std::uint32_t budget)
    : cells_(cells), moves_(moves), budget_(budget), cursors_(kBlockCells + 1) {
  for (BlockIndex block = 0; block < cells.block_count(); ++block) {
    const std::uint64_t free = cells.free_cells(block);
    if (free != 0 && free != bits::kAll && !cells.is_leased(block)) blocks_.push_back({block, free});
  }
  std::stable_sort(blocks_.begin(), blocks_.end(),
                   [](const Partly& a, const Partly& b) { return held(a.free) > held(b.free); });
}

void Evacuation::run() {
  for (std::size_t source = blocks_.size(); source-- > 0 && budget_ > 0;) {
    if (held(cells_.free_cells(blocks_[source].block)) > kNearlyEmpty) return;
    // What lies here since a moment ago would move again.
    if (blocks_[source].free != cells_.free_cells(blocks_[source].block)) return;
    if (!find_holes(source)) {
      for (const Planned& plan : planned_)
        blocks_[plan.target].free |= bits::stretch(plan.offset, plan.from.length);
      continue;
    }
    for (const Planned& plan : planned_) {
      if (plan.from.length > budget_) return;
      budget_ -= plan.from.length;
      moves_.begin_unit();
      moves_.add(plan.from, blocks_[plan.target].block * kBlockCells + plan.offset);
    }
  }
}

// Whether all that is held in the block finds room in those before it.
bool Evacuation::find_holes(std::size_t source) {
  planned_.clear();
  const BlockIndex block = blocks_[source].block;
  for (std::uint64_t rest = ~cells_.free_cells(block); rest != 0;) {
    const std::uint32_t begin = bits::lowest(rest);
    const std::uint32_t end = bits::lowest(~rest & bits::from(begin));
    if (!place({block * kBlockCells + begin, end - begin}, source)) return false;
    rest &= bits::from(end);
  }
  return true;
}

bool Evacuation::place(CellSpan stretch, std::size_t limit) {
  for (std::size_t& at = cursors_[stretch.length]; at < limit; ++at) {
    std::uint64_t starts = blocks_[at].free;  // where as many cells are free
    for (std::uint32_t i = 1; i < stretch.length; ++i) starts &= blocks_[at].free >> i;
    if (starts == 0) continue;
    const std::uint32_t offset = bits::lowest(starts);
    blocks_[at].free &= ~bits::stretch(offset, stretch.length);
    planned_.push_back({stretch, at, offset});
    return true;
  }
  return false;
}

Gathering::Gathering(const CellMap& cells, CellMoves& moves, std::uint32_t budget,
                     std::span<const CellSpan> stuck)
    : cells_(cells), moves_(moves), budget_(budget) {
  if (!stuck.empty()) stays_.resize(cells.counts().capacity);
  for (const CellSpan span : stuck)
    for (std::uint32_t i = 0; i < span.length; ++i) stays_[span.begin + i] = true;
}

bool Gathering::is_worthwhile(std::size_t runs, std::uint32_t tokens) {
  return runs >= kFewRuns && tokens / runs < kLongRun;
}

void Gathering::add(CellSpan cells) {
  while (cells.length > 0 && !is_done()) {
    const std::uint32_t length = std::min(cells.length, kBlockCells - cells.begin % kBlockCells);
    add_piece({cells.begin, length});
    cells = {cells.begin + length, cells.length - length};
  }
}

void Gathering::add_piece(CellSpan piece) {
  const std::uint32_t room = std::min(kBlockCells, budget_);
  if (!can_move(piece)) return end();
  if (open_cells_ + piece.length > room) end();
  if (piece.length > budget_) return;
  open_.push_back(piece);
  open_cells_ += piece.length;
}

bool Gathering::can_move(CellSpan piece) const {
  if (piece.length >= kLongRun || moves_.has(piece.begin)) return false;
  for (std::uint32_t i = 0; !stays_.empty() && i < piece.length; ++i)
    if (stays_[piece.begin + i]) return false;
  return true;
}

void Gathering::end() {
  if (is_worthwhile(open_.size(), open_cells_) && open_cells_ <= budget_ && find_block()) {
    moves_.begin_unit();
    CellIndex to = next_++ * kBlockCells;
    for (const CellSpan piece : open_) {
      moves_.add(piece, to);
      to += piece.length;
    }
    budget_ -= open_cells_;
  }
  open_.clear();
  open_cells_ = 0;
}

bool Gathering::find_block() {
  while (next_ < cells_.block_count() && (!cells_.block_is_free(next_) || cells_.is_leased(next_))) ++next_;
  return next_ < cells_.block_count();
}

}  // namespace pykv
