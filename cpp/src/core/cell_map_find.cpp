// The search of CellMap::find. Each stage serves all requests before the next begins,
// so that nobody is given another's lease while its owner still wants it.
#include <algorithm>
#include <numeric>
#include <string>

#include "core/cell_bits.h"
#include "pykv/cell_map.h"
#include "pykv/errors.h"

namespace pykv {

class CellFinder {
 public:
  CellFinder(const CellMap& map, FoundCells& found) : map_(map), found_(found) {}

  void run(std::span<const CellRequest> requests) {
    begin(requests);
    const std::size_t count = requests.size();
    for (std::size_t i = 0; i < count; ++i) from_own_block(i);
    for (std::size_t i = 0; i < count; ++i) from_whole_blocks(i);
    for (std::size_t i = 0; i < count; ++i) from_holes(i);
    for (std::size_t i = 0; i < count; ++i) from_leases_of_others(i);
    sort_by_request();
  }

 private:
  void begin(std::span<const CellRequest> requests) {
    for (const BlockIndex block : found_.touched_) found_.masks_[block] = 0;
    found_.touched_.clear();
    found_.masks_.resize(map_.block_count());
    found_.given_.clear();
    found_.wanted_.assign(requests.size(), {});
    for (std::size_t i = 0; i < requests.size(); ++i) {
      found_.wanted_[i].request = requests[i];
      found_.wanted_[i].left = requests[i].cells;
    }
  }

  // Those of one request are in order already.
  void sort_by_request() {
    found_.begin_.assign(found_.wanted_.size() + 1, 0);
    for (const auto& given : found_.given_) ++found_.begin_[given.request + 1];
    std::partial_sum(found_.begin_.begin(), found_.begin_.end(), found_.begin_.begin());
    found_.spans_.resize(found_.given_.size());
    for (const auto& given : found_.given_)
      found_.spans_[found_.begin_[given.request] + found_.wanted_[given.request].sorted++] = given.cells;
  }

  std::uint64_t free_of(BlockIndex block) const { return map_.blocks_[block].free & ~found_.masks_[block]; }
  std::uint32_t left(std::size_t i) const { return found_.wanted_[i].left; }

  // Last cell of request i, or of the sequence before it.
  std::optional<CellIndex> last_cell(std::size_t i) const {
    const FoundCells::Wanted& wanted = found_.wanted_[i];
    if (wanted.last == FoundCells::kNone) return wanted.request.after;
    const CellSpan& cells = found_.given_[wanted.last].cells;
    return cells.begin + cells.length - 1;
  }

  // Gives request i the cells [begin, end) of `block`, or as many as it still wants.
  void give(std::size_t i, BlockIndex block, std::uint32_t begin, std::uint32_t end) {
    FoundCells::Wanted& wanted = found_.wanted_[i];
    const std::uint32_t length = std::min(end - begin, wanted.left);
    if (length == 0) return;
    const CellIndex cell = block * kBlockCells + begin;
    if (found_.masks_[block] == 0) found_.touched_.push_back(block);
    if (wanted.last != FoundCells::kNone && *last_cell(i) + 1 == cell) {
      found_.given_[wanted.last].cells.length += length;
    } else {
      found_.given_.push_back({{cell, length}, static_cast<std::uint32_t>(i)});
      wanted.last = static_cast<std::uint32_t>(found_.given_.size() - 1);
    }
    found_.masks_[block] |= bits::range(begin, begin + length);
    wanted.left -= length;
  }

  // Gives the free cells of `block` at and above `offset`, lowest first.
  void give_from(std::size_t i, BlockIndex block, std::uint32_t offset) {
    std::uint64_t free = free_of(block) & bits::from(offset);
    while (free != 0 && left(i) > 0) {
      const std::uint32_t begin = bits::lowest(free);
      const std::uint32_t end = bits::lowest(~free & bits::from(begin));
      give(i, block, begin, end);
      free &= bits::from(end);
    }
  }

  // Gives the free cells directly behind the sequence's last one, inside its block.
  void continue_behind(std::size_t i, CellIndex last) {
    const std::uint32_t offset = last % kBlockCells + 1;
    const std::uint64_t held = ~free_of(last / kBlockCells);
    give(i, last / kBlockCells, offset, std::max(offset, bits::lowest(held & bits::from(offset))));
  }

  void from_own_block(std::size_t i) {
    const CellRequest& request = found_.wanted_[i].request;
    const BlockIndex last = request.after ? *request.after / kBlockCells : 0;
    if (request.after) {
      const SeqId lease = map_.blocks_[last].lease;
      if (lease == request.seq || lease == SeqId{}) continue_behind(i, *request.after);
    }
    if (left(i) == 0) return;
    const std::optional<BlockIndex> own = map_.lease(request.seq, last);
    if (!own) return;
    if (request.after && *request.after / kBlockCells == *own)
      give_from(i, *own, *request.after % kBlockCells + 1);
    give_from(i, *own, 0);
  }

  bool is_untouched(BlockIndex block) const {
    return bits::test(map_.whole_free_, block) && found_.masks_[block] == 0;
  }

  // The block that begins behind the last cell of request i, if it is whole.
  std::optional<BlockIndex> next_block(std::size_t i) const {
    const std::optional<CellIndex> last = last_cell(i);
    if (!last || (*last + 1) % kBlockCells != 0) return std::nullopt;
    const BlockIndex next = *last / kBlockCells + 1;
    if (next >= map_.block_count() || !is_untouched(next)) return std::nullopt;
    return next;
  }

  // First block at or above `cursor` whose bit is set in `word(index)`; block_count() if none.
  template <class Word>
  BlockIndex search(BlockIndex cursor, Word word) const {
    const std::size_t words = map_.whole_free_.size();
    for (std::size_t at = cursor / 64; at < words; ++at) {
      const std::uint64_t found = word(at) & (at == cursor / 64 ? bits::from(cursor % 64) : bits::kAll);
      if (found != 0) return static_cast<BlockIndex>(at * 64) + bits::lowest(found);
    }
    return map_.block_count();
  }

  void from_whole_blocks(std::size_t i) {
    while (left(i) > 0) {
      std::optional<BlockIndex> block = next_block(i);
      if (!block) {
        const auto word = [&](std::size_t at) { return map_.whole_free_[at]; };
        whole_cursor_ = search(whole_cursor_, word);
        if (whole_cursor_ == map_.block_count()) return;
        block = whole_cursor_++;
        if (!is_untouched(*block)) continue;
      }
      give_from(i, *block, 0);
    }
  }

  void from_holes(std::size_t i) {
    const auto word = [&](std::size_t at) { return map_.partly_free_[at]; };
    while (left(i) > 0) {
      hole_cursor_ = search(hole_cursor_, word);
      if (hole_cursor_ == map_.block_count()) return;
      give_from(i, hole_cursor_, 0);
      if (left(i) > 0) ++hole_cursor_;
    }
  }

  // Takes the upper half of a free stretch, so that the owner can go on in the lower one
  // and the sequence in the upper one; each request begins with another block.
  void from_leases_of_others(std::size_t i) {
    const std::optional<CellIndex> after = found_.wanted_[i].request.after;
    if (left(i) > 0 && after) continue_behind(i, *after);
    const auto word = [&](std::size_t at) {
      return map_.leased_[at] | map_.whole_free_[at] | map_.partly_free_[at];
    };
    while (left(i) > 0) {
      lease_cursor_ = search(lease_cursor_, word);
      if (lease_cursor_ == map_.block_count()) {
        lease_cursor_ = 0;
        continue;
      }
      split_stretch(i, lease_cursor_++);
    }
  }

  void split_stretch(std::size_t i, BlockIndex block) {
    for (std::uint64_t free = free_of(block); free != 0 && left(i) > 0; free = free_of(block)) {
      const std::uint32_t end = bits::highest(free) + 1;
      const std::uint64_t held_below = ~free & bits::range(0, end);
      const std::uint32_t begin = held_below == 0 ? 0 : bits::highest(held_below) + 1;
      const std::uint32_t length = end - begin;
      const std::uint32_t most = std::min(left(i), length);
      give(i, block, left(i) > length / 2 ? end - most : end - length / 2, end);
    }
  }

  const CellMap& map_;
  FoundCells& found_;
  BlockIndex whole_cursor_ = 0, hole_cursor_ = 0, lease_cursor_ = 0;
};

bool CellMap::find(std::span<const CellRequest> requests, FoundCells& found) const {
  std::uint64_t total = 0;
  for (const CellRequest& request : requests) {
    total += request.cells;
    if (request.after && *request.after >= counts_.capacity)
      throw InvalidArgument("[CellMap.find] after = " + std::to_string(*request.after) +
                            " is not a cell; the capacity is " + std::to_string(counts_.capacity));
  }
  if (total > counts_.free) return false;
  CellFinder(*this, found).run(requests);
  return true;
}

}  // namespace pykv
