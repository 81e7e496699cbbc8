// Floor 1. Where a sequence lives: a persistent (structure-sharing) list of runs.
//
// A run says: the tokens at positions [first, first + length) lie in consecutive cells
// starting at `cell`, and were stored for positions lower by `rotation`. Runs name
// cells, not extents: extent boundaries move when others share or leave, runs do not.
//
// Positions never descend; they may have gaps, and neighbours may share one (then no run
// has two tokens of it). The list is a balanced tree (B+ tree). A leaf holds up to 32
// *pieces*: parts of runs that lie in one block each. Pieces that continue each other are
// one run wherever runs are counted or visited, also across leaves. Copying a list (fork)
// copies one pointer: O(1). Each leaf holds its cells once in the CellMap, however many
// lists share the leaf; the last list to go drops it.
// A change writes in place where the list is the only owner; shared nodes on its path are
// copied first: O(log pieces), plus a holder for each of the at most 32 pieces of a leaf.
// So copy, append to the copy, and drop one of the two costs O(log pieces) as well.
//
// Threads: externally locked with its CellMap, which must outlive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "pykv/cell_map.h"
#include "pykv/types.h"

namespace pykv {

struct Run {
  Pos first = 0;             // logical position of the first token
  CellIndex cell = 0;        // its cell
  std::uint32_t length = 0;  // tokens
  Pos rotation = 0;          // logical minus stored position; 0 unless shifted
  Pos end() const { return first + static_cast<Pos>(length); }
  friend bool operator==(const Run&, const Run&) = default;
};

class RunList {
 public:
  explicit RunList(CellMap& cells);
  RunList(const RunList&);  // O(1), shares everything
  RunList(RunList&&) noexcept;
  RunList& operator=(RunList) noexcept;
  ~RunList();

  std::uint32_t tokens() const;     // sum of lengths
  std::uint32_t runs() const;       // number of runs
  Pos begin() const;                // first position, 0 if empty
  Pos end() const;                  // one past the last position, 0 if empty
  std::optional<Run> last() const;  // all of these O(1)

  // Appends `run`, whose first position must be >= the last one of the list and whose last
  // one < kMaxPos (throws InvalidArgument). `adopt`: the cells were taken (CellMap::take) by the caller
  // for this list and one holder passes to it; otherwise (sharing) the list adds a holder
  // of its own. If this throws, list and holders are as before.
  // O(log pieces + blocks of the run).
  enum class Hold { adopt, share };
  void append(const Run& run, Hold hold);

  // Removes all positions >= end (throws InvalidArgument if it is negative).
  // O(log pieces) plus the cells that become free.
  void truncate(Pos end);

  // Run that covers `pos`, whole. O(log pieces).
  std::optional<Run> find(Pos pos) const;

  // Adds the tokens that `from` has in `span`, at their positions, none of which may be in
  // the list (throws InvalidArgument). Shares whole subtrees. If this throws, nothing has
  // changed; so it is with the two below. O(log pieces) if they come behind the last one
  // or between two others, else O(log pieces) for each of their runs.
  void insert(const RunList& from, Span span);

  // Removes the tokens in `span`; the others stay where they are. O(log pieces).
  void remove(Span span);
  // Removes all positions < begin, as a window does with each token: in place where only the first
  // leaf changes, which is nearly always. O(log pieces) plus the cells that become free.
  void remove_front(Pos begin);

  // Moves the tokens in `span` by `delta` and adds `rotation` to their runs' rotation.
  // `delta` must lie in shift_room(span) (throws InvalidArgument). O(pieces of the span).
  void shift(Span span, Pos delta, Pos rotation);

  // How far the tokens in `span` can move and stay behind all tokens before the span, before
  // all behind it, and in [0, kMaxPos). {0, 0} if there are none. O(log pieces).
  struct ShiftRoom {
    Pos lowest = 0, highest = 0;
    bool has(Pos delta) const { return delta >= lowest && delta <= highest; }
  };
  ShiftRoom shift_room(Span span) const;

  // Gives the list leaves of its own for the tokens in `span`: CellMap::holders() then tells
  // whether anybody else has one of their cells. O(pieces of the span).
  void own(Span span);

  // The lowest position >= pos, the highest one < pos, that the list has. O(log pieces).
  std::optional<Pos> next(Pos pos) const;
  std::optional<Pos> previous(Pos pos) const;

  // Runs clipped to [span.begin, span.end), in position order. O(log pieces + runs).
  // `call` takes a const Run& and must not change the list.
  template <class Call>
  void for_each(Span span, Call&& call) const {
    using Target = std::remove_reference_t<Call>;
    visit(span, {const_cast<void*>(static_cast<const void*>(&call)),
                 [](void* target, const Run& run) { (*static_cast<Target*>(target))(run); }});
  }
  std::vector<Run> to_vector() const;

  // Cells that another list holds too, through a shared leaf or a holder of its own.
  std::uint32_t shared_cells() const;

  class Relocation;

  void check_integrity() const;

 private:
  struct Node;

  static constexpr std::size_t kMaxHeight = 16;    // 2^32 pieces need 9
  using Path = std::array<Node*, kMaxHeight + 1>;  // [h]: a node of height h
  struct Visitor {
    void* target;
    void (*call)(void* target, const Run& run);
  };
  void visit(Span span, Visitor visitor) const;
  Node* writable(Node*& slot);
  Path right_edge(std::uint32_t lowest);
  void extend_last(std::uint32_t length);
  bool shrink_first(Pos begin);
  void append_piece(const Run& piece);
  void append_node(Node& node);
  void append_below(const Node& node, Span span);
  void append(const RunList& from, Span span);
  void hang(Node& node, Path& path);
  void own_below(Node*& slot, Span span);
  void tidy_right_edge();
  void even_out_last(Node& parent);
  void collapse();
  void cut(Node*& slot, Pos end);
  static void release(Node* node, CellMap& cells);

  CellMap* cells_;
  Node* root_ = nullptr;  // null: empty
};

// Lists whose cells move together. Nodes that they share are changed once, for all of them.
class RunList::Relocation {
 public:
  Relocation() = default;
  ~Relocation();
  Relocation(const Relocation&) = delete;
  Relocation& operator=(const Relocation&) = delete;
  void add(const RunList& list);  // every list that may have one of the cells. O(nodes)
  // Refuses what would tear a piece apart; returns such pieces.
  std::vector<CellSpan> restrict(CellMoves& moves) const;
  void apply(const CellMoves& moves) noexcept;  // the lists must not have changed since add()

 private:
  void add(Node& node);
  std::vector<Node*> nodes_;  // each once, those below others first
};

}  // namespace pykv
