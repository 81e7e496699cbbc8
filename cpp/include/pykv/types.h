// Floor 1. Vocabulary types. Values only: no I/O, no threads, no tensors.
//
// Every quantity that could be mixed up with another has a type of its own:
// a cell index never adds to a position, a sequence id is never a slot number.
#pragma once

#include <cstdint>
#include <functional>

namespace pykv {

// Logical position of a token in its sequence, 0-based. Never negative in a
// valid object; valid positions are < kMaxPos.
using Pos = std::int32_t;
inline constexpr Pos kMaxPos = 0x7fffffff;

// Vocabulary id of a token as the model file numbers it.
using Token = std::int32_t;

// Index of a cell inside its pool: block index * kBlockCells + offset.
using CellIndex = std::uint32_t;
using BlockIndex = std::uint32_t;

// Cells per block. 64, because one machine word then holds a block's free mask
// and another its extent boundaries; commit, release, park and checksums work
// on whole blocks of this size.
inline constexpr std::uint32_t kBlockCells = 64;

// Attention adds up inside fixed partitions of this many *positions* and merges
// the partial results in position order. It is part of the meaning of a logit:
// changing it changes bits.
inline constexpr std::uint32_t kPartitionPositions = 256;

// A distinct integer type per id kind; comparable and hashable, not arithmetic.
template <class Tag, class Rep>
struct Id {
  Rep value{};
  friend constexpr bool operator==(Id, Id) = default;
  friend constexpr auto operator<=>(Id, Id) = default;
};

// Sequences are numbered from 1 upwards and never reused while a cache lives,
// so that a stale handle is an error instead of somebody else's session.
using SeqId = Id<struct SeqTag, std::uint64_t>;

// Node of the prefix tree; reused after removal, 0 is the root.
using NodeId = Id<struct NodeTag, std::uint32_t>;

// Who may share with whom. Two tokens match only if their namespaces are equal.
using NamespaceId = Id<struct NamespaceTag, std::uint32_t>;

// Place of one sequence's state of all recurrent layers (state_layout.h).
using StateSlot = Id<struct StateSlotTag, std::uint32_t>;

// Half-open range of positions [begin, end), 0 <= begin <= end.
struct Span {
  Pos begin = 0;
  Pos end = 0;
  constexpr std::uint32_t length() const { return static_cast<std::uint32_t>(end - begin); }
  friend constexpr bool operator==(Span, Span) = default;
};

// Consecutive cells [begin, begin + length).
struct CellSpan {
  CellIndex begin = 0;
  std::uint32_t length = 0;
  friend constexpr bool operator==(CellSpan, CellSpan) = default;
};

// Seconds on an arbitrary but monotonic scale. Always passed in, never read
// from the system by floors 1 to 4.
using Clock = std::function<double()>;

}  // namespace pykv

template <class Tag, class Rep>
struct std::hash<pykv::Id<Tag, Rep>> {
  std::size_t operator()(pykv::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};
