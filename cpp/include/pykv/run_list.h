// Floor 1. Where a sequence lives: a persistent (structure-sharing) list of runs.
//
// A run says: the tokens at positions [first, first + length) lie in consecutive cells
// starting at `cell`, and were stored for positions lower by `rotation`. Runs name
// cells, not extents: extent boundaries move when others share or leave, runs do not.
//
// The list is an immutable balanced tree whose leaves are runs. Copying a list
// (fork) copies one pointer: O(1). Each leaf holds its cells once in the CellMap,
// however many lists share the leaf; the last list to go drops it.
// append is in place when the list is the only owner of its right edge, otherwise
// it copies O(log runs) nodes. A run physically next to the last one extends it.
//
// Threads: externally locked with its CellMap, which must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "pykv/cell_map.h"
#include "pykv/types.h"

namespace pykv {

struct Run {
  Pos first = 0;            // logical position of the first token
  CellIndex cell = 0;       // its cell
  std::uint32_t length = 0;  // tokens
  Pos rotation = 0;         // logical minus stored position; 0 unless shifted
  Pos end() const { return first + static_cast<Pos>(length); }
  friend bool operator==(const Run&, const Run&) = default;
};

class RunList {
 public:
  explicit RunList(CellMap& cells);
  RunList(const RunList&);             // O(1), shares everything
  RunList(RunList&&) noexcept;
  RunList& operator=(RunList) noexcept;
  ~RunList();

  std::uint32_t tokens() const;      // sum of lengths
  std::uint32_t runs() const;        // number of runs
  Pos begin() const;                 // first position, 0 if empty
  Pos end() const;                   // one past the last position, 0 if empty
  std::optional<Run> last() const;

  // Appends `run`, whose first position must be >= end(). `adopt`: the cells were
  // taken (CellMap::take) by the caller for this list and one holder passes to it;
  // otherwise (sharing) the list adds a holder of its own.
  enum class Hold { adopt, share };
  void append(const Run& run, Hold hold);

  // Removes all positions >= end. O(log runs) plus the cells that become free.
  void truncate(Pos end);

  // Run that covers `pos`, whole. O(log runs).
  std::optional<Run> find(Pos pos) const;

  // Runs clipped to [span.begin, span.end), in position order.
  void for_each(Span span, const std::function<void(const Run&)>& visit) const;
  std::vector<Run> to_vector() const;

  void check_integrity() const;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<const Node>;
  CellMap* cells_;
  NodePtr root_;
};

}  // namespace pykv
