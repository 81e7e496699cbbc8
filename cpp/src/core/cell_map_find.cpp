// The search of CellMap::find. Each stage serves all requests before the next begins,
// so that nobody is given another's lease while its owner still wants it.
#include <algorithm>
#include <bit>
#include <string>

#include "core/cell_bits.h"
#include "pykv/cell_map.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

// Cells given so far, over the map that stays as it is: block -> mask. Open addressing.
class Overlay {
 public:
  explicit Overlay(std::size_t blocks) : slots_(std::bit_ceil(2 * blocks + 2)) {}

  std::uint64_t given(BlockIndex block) const { return slots_[slot(block)].mask; }

  void give(BlockIndex block, std::uint64_t mask) {
    if (2 * used_ >= slots_.size()) grow();
    Slot& entry = slots_[slot(block)];
    used_ += entry.mask == 0 ? 1 : 0;
    entry = {entry.mask | mask, block};
  }

 private:
  struct Slot {
    std::uint64_t mask = 0;  // 0: empty
    BlockIndex block = 0;
  };

  std::size_t slot(BlockIndex block) const {
    std::size_t at = (block * std::uint64_t{0x9e3779b97f4a7c15} >> 32) & (slots_.size() - 1);
    while (slots_[at].mask != 0 && slots_[at].block != block) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& entry : old)
      if (entry.mask != 0) slots_[slot(entry.block)] = entry;
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

}  // namespace

class CellFinder {
 public:
  CellFinder(const CellMap& map, std::span<const CellRequest> requests, std::uint64_t total)
      : map_(map), overlay_(requests.size() + total / kBlockCells), spans_(requests.size()) {
    wanted_.reserve(requests.size());
    for (const CellRequest& request : requests) wanted_.push_back({request, request.cells});
  }

  std::vector<std::vector<CellSpan>> run() {
    for (std::size_t i = 0; i < wanted_.size(); ++i) from_own_block(i);
    for (std::size_t i = 0; i < wanted_.size(); ++i) from_whole_blocks(i);
    for (std::size_t i = 0; i < wanted_.size(); ++i) from_holes(i);
    for (std::size_t i = 0; i < wanted_.size(); ++i) from_leases_of_others(i);
    return std::move(spans_);
  }

 private:
  struct Wanted {
    CellRequest request;
    std::uint32_t left;
  };

  std::uint64_t free_of(BlockIndex block) const { return map_.blocks_[block].free & ~overlay_.given(block); }

  // Gives request i the cells [begin, end) of `block`, or as many as it still wants.
  void give(std::size_t i, BlockIndex block, std::uint32_t begin, std::uint32_t end) {
    const std::uint32_t length = std::min(end - begin, wanted_[i].left);
    if (length == 0) return;
    overlay_.give(block, bits::range(begin, begin + length));
    wanted_[i].left -= length;
    const CellIndex cell = block * kBlockCells + begin;
    std::vector<CellSpan>& spans = spans_[i];
    if (!spans.empty() && spans.back().begin + spans.back().length == cell)
      spans.back().length += length;
    else
      spans.push_back({cell, length});
  }

  // Gives the free cells of `block` at and above `offset`, lowest first.
  void give_from(std::size_t i, BlockIndex block, std::uint32_t offset) {
    std::uint64_t free = free_of(block) & bits::from(offset);
    while (free != 0 && wanted_[i].left > 0) {
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
    const CellRequest& request = wanted_[i].request;
    std::optional<BlockIndex> own;
    if (request.after) {
      const BlockIndex block = *request.after / kBlockCells;
      const SeqId lease = map_.blocks_[block].lease;
      if (lease == request.seq || lease == SeqId{}) continue_behind(i, *request.after);
      if (lease == request.seq && lease != SeqId{}) own = block;
    }
    if (wanted_[i].left == 0) return;
    if (!own) {
      const auto entry = map_.leases_.find(request.seq);
      if (entry == map_.leases_.end()) return;
      own = entry->second;
    }
    if (request.after && *request.after / kBlockCells == *own)
      give_from(i, *own, *request.after % kBlockCells + 1);
    give_from(i, *own, 0);
  }

  bool is_untouched(BlockIndex block) const {
    return bits::test(map_.whole_free_, block) && overlay_.given(block) == 0;
  }

  // The block that begins behind the last cell of request i, if it is whole.
  std::optional<BlockIndex> next_block(std::size_t i) const {
    std::optional<CellIndex> last = wanted_[i].request.after;
    if (!spans_[i].empty()) last = spans_[i].back().begin + spans_[i].back().length - 1;
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
    while (wanted_[i].left > 0) {
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
    while (wanted_[i].left > 0) {
      hole_cursor_ = search(hole_cursor_, word);
      if (hole_cursor_ == map_.block_count()) return;
      give_from(i, hole_cursor_, 0);
      if (wanted_[i].left > 0) ++hole_cursor_;
    }
  }

  // Takes the upper half of a free stretch, so that the owner can go on in the lower one
  // and the sequence in the upper one; each request begins with another block.
  void from_leases_of_others(std::size_t i) {
    if (wanted_[i].left > 0 && wanted_[i].request.after) continue_behind(i, *wanted_[i].request.after);
    const auto word = [&](std::size_t at) {
      return map_.leased_[at] | map_.whole_free_[at] | map_.partly_free_[at];
    };
    while (wanted_[i].left > 0) {
      lease_cursor_ = search(lease_cursor_, word);
      if (lease_cursor_ == map_.block_count()) {
        lease_cursor_ = 0;
        continue;
      }
      split_stretch(i, lease_cursor_++);
    }
  }

  void split_stretch(std::size_t i, BlockIndex block) {
    for (std::uint64_t free = free_of(block); free != 0 && wanted_[i].left > 0; free = free_of(block)) {
      const std::uint32_t end = bits::highest(free) + 1;
      const std::uint64_t held_below = ~free & bits::range(0, end);
      const std::uint32_t begin = held_below == 0 ? 0 : bits::highest(held_below) + 1;
      const std::uint32_t length = end - begin;
      const std::uint32_t left = wanted_[i].left;
      give(i, block, left > length / 2 ? end - std::min(left, length) : end - length / 2, end);
    }
  }

  const CellMap& map_;
  Overlay overlay_;
  std::vector<Wanted> wanted_;
  std::vector<std::vector<CellSpan>> spans_;
  BlockIndex whole_cursor_ = 0, hole_cursor_ = 0, lease_cursor_ = 0;
};

std::optional<std::vector<std::vector<CellSpan>>> CellMap::find(std::span<const CellRequest> requests) const {
  std::uint64_t total = 0;
  for (const CellRequest& request : requests) {
    total += request.cells;
    if (request.after && *request.after >= counts_.capacity)
      throw InvalidArgument("[CellMap.find] after = " + std::to_string(*request.after) +
                            " is not a cell; the capacity is " + std::to_string(counts_.capacity));
  }
  if (total > counts_.free) return std::nullopt;
  return CellFinder(*this, requests, total).run();
}

}  // namespace pykv
