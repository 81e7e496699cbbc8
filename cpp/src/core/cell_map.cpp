#include "pykv/cell_map.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "core/cell_bits.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

constexpr std::uint32_t kInTree = std::uint32_t{1} << 31;
constexpr std::uint32_t kMaxHolders = kInTree - 1;
constexpr std::uint32_t kMaxBlocks = (std::uint32_t{1} << 26) - 1;

std::uint32_t holder_count(std::uint32_t word) { return word & kMaxHolders; }

std::string text(CellSpan cells) {
  return "cells [" + std::to_string(cells.begin) + ", " +
         std::to_string(std::uint64_t{cells.begin} + cells.length) + ")";
}

}  // namespace

CellMap::CellMap(std::uint32_t blocks) {
  if (blocks == 0 || blocks > kMaxBlocks)
    throw InvalidArgument("[CellMap] " + std::to_string(blocks) + " blocks: must be 1 to " +
                          std::to_string(kMaxBlocks) + "; choose another capacity");
  const std::size_t bitmap_words = (std::size_t{blocks} + 63) / 64;
  blocks_.resize(blocks);
  words_.resize(std::size_t{blocks} * kBlockCells);
  whole_free_.assign(bitmap_words, bits::kAll);
  if (blocks % 64 != 0) whole_free_.back() = bits::range(0, blocks % 64);
  partly_free_.resize(bitmap_words);
  leased_.resize(bitmap_words);
  counts_.capacity = counts_.free = blocks * kBlockCells;
  counts_.free_blocks = blocks;
}

template <class Visit>
void CellMap::for_blocks(CellSpan cells, Visit visit) const {
  BlockIndex block = cells.begin / kBlockCells;
  std::uint32_t begin = cells.begin % kBlockCells;
  for (std::uint32_t left = cells.length; left > 0; ++block, begin = 0) {
    const std::uint32_t end = std::min(begin + left, kBlockCells);
    visit(block, begin, end);
    left -= end - begin;
  }
}

// visit(holder word, number of cells) for the extents of `cells`, clipped; word 0: free.
template <class Visit>
void CellMap::for_extents(CellSpan cells, Visit visit) const {
  for_blocks(cells, [&](BlockIndex index, std::uint32_t begin, std::uint32_t end) {
    const Block& block = blocks_[index];
    while (begin < end) {
      const bool is_free = (block.free >> begin & 1) != 0;
      const std::uint64_t others = is_free ? ~block.free : block.free | block.start;
      const std::uint32_t next = std::min(end, bits::lowest(others & bits::from(begin + 1)));
      const std::uint32_t start = is_free ? 0 : bits::highest(block.start & ~bits::from(begin + 1));
      visit(is_free ? 0 : words_[std::size_t{index} * kBlockCells + start], next - begin);
      begin = next;
    }
  });
}

void CellMap::require_range(CellSpan cells, const char* method) const {
  if (std::uint64_t{cells.begin} + cells.length <= counts_.capacity) return;
  throw IntegrityError(std::string(method) + " " + text(cells) + " exceed the capacity of " +
                       std::to_string(counts_.capacity) + " cells");
}

void CellMap::require_block(BlockIndex block, const char* method) const {
  if (block < block_count()) return;
  throw IntegrityError(std::string(method) + " block " + std::to_string(block) + " of " +
                       std::to_string(block_count()));
}

template <class Allowed>
void CellMap::require(CellSpan cells, Allowed allowed, const char* message) const {
  require_range(cells, message);
  bool ok = true;
  for_extents(cells, [&](std::uint32_t word, std::uint32_t) { ok = ok && allowed(word); });
  if (!ok) throw IntegrityError(std::string(message) + ": " + text(cells));
}

// Puts boundaries where stretches of `cells` begin and end, if their neighbours are held.
void CellMap::split_around(BlockIndex index, std::uint64_t cells) {
  Block& block = blocks_[index];
  std::uint32_t* words = &words_[std::size_t{index} * kBlockCells];
  std::uint64_t rest = (cells ^ (cells << 1)) & ~(block.free | block.start);
  for (; rest != 0; rest &= rest - 1) {
    const std::uint32_t here = bits::lowest(rest);
    words[here] = words[bits::highest(block.start & ~bits::from(here))];
    block.start |= bits::one(here);
  }
}

// Removes the boundaries where stretches of `cells` begin and end that separate equal extents.
// Inside a stretch none does: what differed before a change differs after it.
void CellMap::merge_around(BlockIndex index, std::uint64_t cells) {
  Block& block = blocks_[index];
  const std::uint32_t* words = &words_[std::size_t{index} * kBlockCells];
  std::uint64_t rest = block.start & (cells ^ cells << 1) & ~(block.free << 1) & ~std::uint64_t{1};
  for (; rest != 0; rest &= rest - 1) {
    const std::uint32_t here = bits::lowest(rest);
    const std::uint32_t before = bits::highest(block.start & ~bits::from(here));
    if (words[before] == words[here]) block.start &= ~bits::one(here);
  }
}

struct CellMap::AddHolder {
  static constexpr const char* refusal = "[CellMap.add_holder] a cell is free or has too many holders";
  static bool allowed(std::uint32_t word) { return word != 0 && holder_count(word) < kMaxHolders; }
  static std::uint32_t apply(std::uint32_t word) { return word + 1; }
  static std::uint32_t undo(std::uint32_t word) { return word - 1; }
  static bool turns(std::uint32_t before, std::uint32_t) { return holder_count(before) == 0; }
  static constexpr bool adds = true;
};

struct CellMap::DropHolder {
  static constexpr const char* refusal = "[CellMap.drop_holder] a cell has no holder";
  static bool allowed(std::uint32_t word) { return holder_count(word) > 0; }
  static std::uint32_t apply(std::uint32_t word) { return word - 1; }
  static std::uint32_t undo(std::uint32_t word) { return word + 1; }
  static bool turns(std::uint32_t, std::uint32_t after) { return holder_count(after) == 0; }
  static constexpr bool adds = false;
};

struct CellMap::SetInTree {
  static constexpr const char* refusal = "[CellMap.set_in_tree] a cell is free or in the tree already";
  static bool allowed(std::uint32_t word) { return word != 0 && (word & kInTree) == 0; }
  static std::uint32_t apply(std::uint32_t word) { return word | kInTree; }
  static std::uint32_t undo(std::uint32_t word) { return word & ~kInTree; }
  static bool turns(std::uint32_t, std::uint32_t) { return false; }
  static constexpr bool adds = true;
};

struct CellMap::ClearInTree {
  static constexpr const char* refusal = "[CellMap.clear_in_tree] a cell is not in the tree";
  static bool allowed(std::uint32_t word) { return (word & kInTree) != 0; }
  static std::uint32_t apply(std::uint32_t word) { return word & ~kInTree; }
  static std::uint32_t undo(std::uint32_t word) { return word | kInTree; }
  static bool turns(std::uint32_t, std::uint32_t) { return false; }
  static constexpr bool adds = false;
};

template <class Change>
void CellMap::change(CellSpan cells) {
  require_range(cells, Change::refusal);
  const bool in_one_block = cells.begin % kBlockCells + cells.length <= kBlockCells;
  if (!in_one_block) require(cells, Change::allowed, Change::refusal);
  for_blocks(cells, [&](BlockIndex block, std::uint32_t begin, std::uint32_t end) {
    change<Change>(block, bits::range(begin, end));
  });
}

// Undoes what was done to the `changed` ones of the boundaries in `cells`, and throws.
template <class Change>
void CellMap::refuse(BlockIndex index, std::uint64_t cells, std::uint64_t changed) {
  std::uint32_t* words = &words_[std::size_t{index} * kBlockCells];
  for (std::uint64_t rest = blocks_[index].start & cells & changed; rest != 0; rest &= rest - 1)
    words[bits::lowest(rest)] = Change::undo(words[bits::lowest(rest)]);
  merge_around(index, cells);
  throw IntegrityError(std::string(Change::refusal) + ", in block " + std::to_string(index));
}

template <class Change>
void CellMap::change(BlockIndex index, std::uint64_t cells) {
  Block& block = blocks_[index];
  std::uint32_t* words = &words_[std::size_t{index} * kBlockCells];
  split_around(index, cells);
  const std::uint64_t free_before = block.free, ends = block.start | free_before;
  if ((free_before & cells) != 0) refuse<Change>(index, cells, 0);
  std::uint64_t freed = 0;
  std::uint32_t turned = 0;  // cells that are held by sequences from now on, or no more
  for (std::uint64_t rest = block.start & cells; rest != 0; rest &= rest - 1) {
    const std::uint32_t here = bits::lowest(rest);
    const std::uint32_t length = bits::lowest(ends & bits::above(here)) - here;
    const std::uint32_t before = words[here], after = Change::apply(before);
    if (!Change::allowed(before)) refuse<Change>(index, cells, ~bits::from(here));
    turned += Change::turns(before, after) ? length : 0;
    freed |= after == 0 ? bits::stretch(here, length) : 0;
    words[here] = after;
  }
  block.free |= freed;
  block.start &= ~freed;
  const std::uint32_t more_active = Change::adds ? turned : 0U - turned;  // modulo 2^32
  counts_.active += more_active;
  counts_.idle -= more_active + bits::count(freed);
  counts_.free += bits::count(freed);
  merge_around(index, cells);
  if (freed_call_ && freed != 0) freed_call_(index, freed);
  if (block.free == bits::kAll && free_before != bits::kAll) ++counts_.free_blocks;
  if (free_before == 0 ? block.free != 0 : block.free == bits::kAll) refresh(index);
}

// Files the block under the bitmap that it belongs to; a full block loses its lease.
void CellMap::refresh(BlockIndex index) {
  Block& block = blocks_[index];
  if (block.free == 0 && block.lease != SeqId{}) {
    leases_.erase(block.lease);
    block.lease = {};
  }
  const bool leased = block.lease != SeqId{};
  const bool whole = block.free == bits::kAll;
  bits::assign(whole_free_, index, whole && !leased);
  bits::assign(partly_free_, index, block.free != 0 && !whole && !leased);
  bits::assign(leased_, index, leased);
}

// Makes `index` the leased block of `seq`, unless another sequence has it or nothing of it
// will be left.
void CellMap::move_lease(SeqId seq, BlockIndex index, bool block_has_rest) {
  Block& block = blocks_[index];
  if (seq == SeqId{} || block.lease == seq) return;
  if (block.lease != SeqId{} || !block_has_rest) return drop_lease(seq);
  const auto [entry, is_new] = leases_.try_emplace(seq, index);
  if (!is_new) {
    const BlockIndex old = entry->second;
    entry->second = index;
    blocks_[old].lease = {};
    refresh(old);
  }
  block.lease = seq;
  refresh(index);
}

void CellMap::take(SeqId seq, CellSpan cells) {
  require_range(cells, "[CellMap.take]");
  bool all_free = true;
  for_blocks(cells, [&](BlockIndex index, std::uint32_t begin, std::uint32_t end) {
    all_free = all_free && (bits::range(begin, end) & ~blocks_[index].free) == 0;
  });
  if (!all_free) throw IntegrityError("[CellMap.take] not all cells are free: " + text(cells));
  if (cells.length == 0) return;
  const CellIndex last = cells.begin + cells.length - 1;
  const std::uint32_t first_in_last =
      cells.begin / kBlockCells == last / kBlockCells ? cells.begin % kBlockCells : 0;
  const std::uint64_t taken = bits::range(first_in_last, last % kBlockCells + 1);
  move_lease(seq, last / kBlockCells, (blocks_[last / kBlockCells].free & ~taken) != 0);
  for_blocks(cells, [&](BlockIndex index, std::uint32_t begin, std::uint32_t end) {
    Block& block = blocks_[index];
    const bool was_whole = block.free == bits::kAll;
    if (was_whole) --counts_.free_blocks;
    block.free &= ~bits::range(begin, end);
    block.start |= bits::one(begin);
    words_[std::size_t{index} * kBlockCells + begin] = 1;
    merge_around(index, bits::range(begin, end));
    if (was_whole || block.free == 0) refresh(index);
  });
  counts_.free -= cells.length;
  counts_.active += cells.length;
}

void CellMap::add_holder(CellSpan cells) { change<AddHolder>(cells); }

void CellMap::drop_holder(CellSpan cells) { change<DropHolder>(cells); }

void CellMap::set_in_tree(CellSpan cells) { change<SetInTree>(cells); }

void CellMap::clear_in_tree(CellSpan cells) { change<ClearInTree>(cells); }

void CellMap::add_holder(BlockIndex block, std::uint64_t cells) {
  require_block(block, "[CellMap.add_holder]");
  change<AddHolder>(block, cells);
}

void CellMap::drop_holder(BlockIndex block, std::uint64_t cells) {
  require_block(block, "[CellMap.drop_holder]");
  change<DropHolder>(block, cells);
}

void CellMap::on_freed(std::function<void(BlockIndex, std::uint64_t)> call) { freed_call_ = std::move(call); }

void CellMap::drop_lease(SeqId seq) {
  const auto entry = leases_.find(seq);
  if (entry == leases_.end()) return;
  const BlockIndex block = entry->second;
  leases_.erase(entry);
  blocks_[block].lease = {};
  refresh(block);
}

std::optional<BlockIndex> CellMap::lease(SeqId seq, BlockIndex likely) const {
  if (likely < block_count() && blocks_[likely].lease == seq && seq != SeqId{}) return likely;
  const auto entry = leases_.find(seq);
  if (entry == leases_.end()) return std::nullopt;
  return entry->second;
}

void CellMap::restore_lease(SeqId seq, std::optional<BlockIndex> block) noexcept {
  if (block && blocks_[*block].lease == seq) return;
  drop_lease(seq);
  if (!block || blocks_[*block].lease != SeqId{} || blocks_[*block].free == 0) return;
  try {
    leases_.emplace(seq, *block);
  } catch (const std::bad_alloc&) {
    return;
  }
  blocks_[*block].lease = seq;
  refresh(*block);
}

std::uint32_t CellMap::word(CellIndex cell, const char* method) const {
  require_range({cell, 1}, method);
  std::uint32_t found = 0;
  for_extents({cell, 1}, [&](std::uint32_t holder_word, std::uint32_t) { found = holder_word; });
  return found;
}

std::uint32_t CellMap::holders(CellIndex cell) const { return holder_count(word(cell, "[CellMap.holders]")); }

bool CellMap::in_tree(CellIndex cell) const { return (word(cell, "[CellMap.in_tree]") & kInTree) != 0; }

bool CellMap::is_free(CellIndex cell) const { return word(cell, "[CellMap.is_free]") == 0; }

std::uint32_t CellMap::shared_cells(CellSpan cells) const {
  require_range(cells, "[CellMap.shared_cells]");
  std::uint32_t shared = 0;
  for_extents(cells, [&](std::uint32_t holder_word, std::uint32_t length) {
    if (holder_count(holder_word) > 1) shared += length;
  });
  return shared;
}

bool CellMap::is_private(CellSpan cells) const {
  require_range(cells, "[CellMap.is_private]");
  bool all = true;
  for_extents(cells, [&](std::uint32_t holder_word, std::uint32_t) { all = all && holder_word == 1; });
  return all;
}

std::uint32_t CellMap::largest_free_span() const {
  std::uint32_t largest = 0, open = 0;  // open: free cells up to here
  for (const Block& block : blocks_) {
    if (block.free == bits::kAll) {
      open += kBlockCells;
      continue;
    }
    for (std::uint32_t at = 0; at < kBlockCells;) {
      const std::uint32_t held = bits::lowest(~block.free & bits::from(at));
      largest = std::max(largest, open + (held - at));
      open = held == kBlockCells ? kBlockCells - at : 0;
      at = held == kBlockCells ? kBlockCells : bits::lowest(block.free & bits::from(held));
    }
  }
  return std::max(largest, open);
}

void CellMap::check_block(BlockIndex index, CellCounts& recount) const {
  const auto fail = [&](const char* what) {
    throw IntegrityError("[CellMap.check_integrity] block " + std::to_string(index) + ": " + what);
  };
  const Block& block = blocks_[index];
  const std::uint32_t* words = &words_[std::size_t{index} * kBlockCells];
  std::uint32_t before = 0;  // word of the cell before, 0 if it is free
  for (std::uint32_t offset = 0; offset < kBlockCells; ++offset) {
    const bool is_free = (block.free >> offset & 1) != 0;
    const bool starts = (block.start >> offset & 1) != 0;
    if (is_free && starts) fail("a free cell carries a boundary");
    if (!is_free && !starts && before == 0) fail("the first held cell carries no boundary");
    const std::uint32_t here = is_free ? 0 : starts ? words[offset] : before;
    if (!is_free && here == 0) fail("a held cell has no holder");
    if (starts && here == before) fail("a boundary separates equal extents");
    ++(is_free ? recount.free : holder_count(here) > 0 ? recount.active : recount.idle);
    before = here;
  }
  const bool leased = block.lease != SeqId{};
  const bool whole = block.free == bits::kAll;
  recount.free_blocks += whole ? 1 : 0;
  if (leased && block.free == 0) fail("a full block is leased");
  if (leased) {
    const auto entry = leases_.find(block.lease);
    if (entry == leases_.end() || entry->second != index) fail("its lease is unknown to the sequence");
  }
  if (bits::test(leased_, index) != leased || bits::test(whole_free_, index) != (whole && !leased) ||
      bits::test(partly_free_, index) != (block.free != 0 && !whole && !leased))
    fail("the bitmaps do not show its free cells");
}

void CellMap::check_integrity() const {
  CellCounts recount;
  std::size_t leases = 0;
  for (BlockIndex index = 0; index < block_count(); ++index) {
    check_block(index, recount);
    leases += blocks_[index].lease != SeqId{} ? 1 : 0;
  }
  if (leases != leases_.size())
    throw IntegrityError("[CellMap.check_integrity] a sequence has a lease that no block knows");
  if (recount.active != counts_.active || recount.idle != counts_.idle || recount.free != counts_.free ||
      recount.free_blocks != counts_.free_blocks || counts_.capacity != blocks_.size() * kBlockCells)
    throw IntegrityError("[CellMap.check_integrity] the counters differ from a recount");
}

}  // namespace pykv
