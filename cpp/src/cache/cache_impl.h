// Floor 3, private. What a Cache, its plans and its open step consist of.
//
// Invariants (check_integrity): of every sequence
//   - the runs cover [0, exact_upto) without gaps, rotation 0,
//   - tokens below exact_upto are ready on the holder's path,
//   - exact tokens lie in the cells that the tree has for them: stored once,
//   - the holder stands at exact_upto, or at the end of the announced prompt,
//   - in each window pool it has its tokens from `kept_from` on, those that its next one sees among them.
// Committed blocks stay within the budget.
//
// A step appends to the run lists of its sequences in place. Until it is finished readers see
// what lies before its tokens; rollback() cuts them off again, which cannot fail.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/cell_pool.h"
#include "cache/pool_sizes.h"
#include "cache/resume_points.h"
#include "cache/state_pool.h"
#include "core/birthplace.h"
#include "pykv/cache.h"
#include "pykv/cell_map.h"
#include "pykv/errors.h"
#include "pykv/run_list.h"

namespace pykv {

// What a sequence has in one window pool.
struct WindowRuns {
  RunList runs;
  Pos kept_from = 0;                                      // its tokens from there on
  std::optional<BlockIndex> lease_before = std::nullopt;  // the open step
};

struct SequenceState {
  // What it was before the open step.
  struct Before {
    Pos end;
    std::optional<BlockIndex> lease;
  };
  // As readers see it.
  Pos end() const { return in_step ? in_step->end : runs.end(); }
  Span bounds() const { return {std::min(runs.begin(), end()), end()}; }

  NamespaceId name_space;
  RunList runs;
  PrefixTree::HolderId holder = {};
  Pos exact_upto = 0;
  Pos published_from = kMaxPos;  // tokens that its last step made ready; kMaxPos: none
  // The prompt given to open(), while the part from exact_upto on is announced.
  std::shared_ptr<const std::vector<Token>> announced = nullptr;
  std::optional<Before> in_step = std::nullopt;  // while it is part of the open step
  std::uint64_t last_plan = 0;                   // number of the last plan() that named it
  std::vector<WindowRuns> windows = {};          // of each window pool
  StateRef state = {};                           // of recurrent layers, at end(); none: at position 0
  StateRef next_state = {};                      // that the open step makes
  // Where resume points are to be made on the way, 0: nowhere. Where others left its prompt and no
  // point was; before the prompt's last token.
  Pos branch = 0, prompt_end = 0;
};

struct Plan::Data {
  struct Item {
    SeqId seq;
    SequenceState* sequence = nullptr;  // as long as the plan is not stale, and in the step
    Pos first = 0;                      // position of its first new token
    std::uint32_t count = 0;
    std::uint32_t first_row = 0;
    std::array<std::uint32_t, kMaxPools> first_span{};  // of each pool, into Part::cells
    bool exact = false;  // ids were given and the lineage was exact: publish at the end
    Pos end() const { return first + static_cast<Pos>(count); }
    // Position of the first of its tokens that a pool with this window gets; end(): none.
    Pos first_in(Window window, bool imports) const { return imports ? first_visible(end(), window) : first; }
  };
  // The new cells of one pool.
  struct Part {
    std::vector<CellSpan> cells;        // of all items, in token order
    std::vector<BlockIndex> to_commit;  // ascending, not committed yet
  };
  const Part& part(std::size_t pool) const { return pool == 0 ? base : windows[pool - 1]; }
  std::span<const CellSpan> cells_of(const Item& item, std::size_t pool = 0) const {
    const Part& of = part(pool);
    const auto index = static_cast<std::size_t>(&item - items.data());
    const std::size_t begin = item.first_span[pool];
    const std::size_t end = index + 1 < items.size() ? items[index + 1].first_span[pool] : of.cells.size();
    return std::span(of.cells).subspan(begin, end - begin);
  }
  std::span<const Token> tokens_of(const Item& item) const {
    return std::span(tokens).subspan(item.first_row, item.count);
  }
  std::uint64_t cache_id = 0;
  std::uint64_t generation = 0;
  std::uint32_t rows = 0;
  bool imports = false;  // plan_import(): one item from position 0 on
  std::vector<Item> items;
  Part base;
  std::vector<Part> windows;
  std::vector<Token> tokens;      // one per row, 0 where no id was given
  std::vector<StateSlot> states;  // that the step will write, one per item
};

struct Cache::Impl {
  // Outlives the cache as long as a Step does, so that the Step finds out.
  struct Link {
    const Birthplace birthplace;
    std::mutex mutex;
    [[nodiscard]] std::unique_lock<std::mutex> lock() {
      if (birthplace.left())
        throw Unsupported(
            "[Cache] this cache belongs to another process, of which this is a fork; make a new one here, or "
            "start children with 'spawn'");
      return std::unique_lock(mutex);
    }
    Impl* cache = nullptr;  // null once the cache is gone
  };

  using Sequence = SequenceState;

  Impl(CacheConfig given, PoolSizes sizes, Backend& machine);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Sequence& find(SeqId seq, const char* method);  // throws InvalidArgument
  const Sequence& find(SeqId seq, const char* method) const;
  // find(), and throws Busy if the sequence is part of the open step.
  Sequence& find_for_change(SeqId seq, const char* method);
  SeqId insert(Sequence sequence);  // numbers it
  void drop(std::unordered_map<SeqId, Sequence>::iterator at);
  void shrink_table() noexcept;  // if few sequences are left of many

  // `prompt` from exact_upto on is what this sequence will compute.
  void announce(Sequence& sequence, std::span<const Token> prompt);
  // The rest of the announced prompt will not be computed by this sequence.
  void withdraw_announcement(Sequence& sequence);
  bool withdraw_announcements();  // of all sequences; false: there were none
  // Puts the holder to exact_upto; drops what is announced and not ready. Cannot fail: without
  // memory for a place there, exact_upto goes back to the one before.
  void settle(Sequence& sequence);
  void keep(std::span<const SeqId> kept, const char* method);
  // Makes the item's tokens matchable and moves exact_upto, if they are exact. Without
  // memory for that they stay private, and the exact lineage ends before them.
  void publish(const Plan::Data& plan, const Plan::Data::Item& item);
  void adopt_path(Sequence& sequence, Pos begin, Pos end);

  // --- windows (windows.cpp, resume.cpp) ---------------------------------------
  // Without window pools all of these find nothing to do.
  std::vector<WindowRuns> empty_windows();
  // Lets go of the cells that the sequence's next token does not see.
  void trim(Sequence& sequence);
  // Whether the window pools have all that the next token of `runs` sees.
  bool continues(const RunList& runs, std::span<const WindowRuns> windows) const;
  // The deepest place, at most `limit` tokens deep, where a sequence continues exactly that begins
  // with the exact tokens in `path`: a live sequence has the cells, or `point` is there.
  struct Place {
    Pos depth = 0;
    const Sequence* live = nullptr;
    std::optional<ResumePoints::PointId> point = std::nullopt;
  };
  Place continuation(std::span<const Run> path, Pos limit, std::optional<ResumePoints::PointId> point) const;
  std::vector<WindowRuns> windows_at(const Place& place);
  StateRef state_at(const Place& place);
  // Whether some layers do not keep what they need of all tokens.
  bool forgets() const { return !windows.empty() || states.is_used(); }
  // Throws Unsupported if there are recurrent layers, whose state has all tokens in their order.
  void refuse_recurrent(const Sequence& sequence, const char* method) const;
  // The same for the exact tokens of a sequence.
  Place continuation(const Sequence& sequence, Pos limit) const;
  // Makes places behind exact tokens resume points if the windows have the cells.
  bool add_point(Sequence& sequence, Pos depth);
  void add_points(Sequence& sequence, Pos begin) noexcept;  // those due behind `begin`
  void add_last_point(Sequence& sequence) noexcept;
  // What a sequence has there after an edit. Throws Unsupported where its next token would miss cells.
  std::vector<WindowRuns> windows_without(const Sequence& sequence, Span gone, const RunList& rest);
  std::vector<WindowRuns> windows_with(const Sequence& target, const Sequence& source, Span wanted,
                                       const RunList& runs);
  std::vector<WindowRuns> windows_shifted(const Sequence& sequence, Span moved, Pos delta, Pos rotation);
  // Throws Unsupported: an edit would lose what the windows no longer have.
  [[noreturn]] void refuse_edit(const Sequence& sequence, const char* method, Pos end) const;

  // Takes off tokens. The last `forgotten` exact ones do not become idle if only this sequence had them.
  void remove(Sequence& sequence, Span gone, std::uint32_t forgotten);

  // The state of what is left after remove().
  StateRef state_without(const Sequence& sequence, Span gone, const RunList& rest);
  StateRef state_with(const Sequence& target, const Sequence& source, Span wanted);
  std::uint32_t drop_points_for_states(std::uint32_t wanted);  // until so many are free; how many became

  std::optional<Plan> plan(std::span<const StepRequest> requests, bool imports);
  // Appends the item's cells to its sequence, all or nothing.
  void take(const Plan::Data& plan, const Plan::Data::Item& item);
  void commit_blocks(const Plan::Data& plan);  // throws OutOfMemory
  // Undoes take() for those items that went through it.
  void take_back(std::span<const Plan::Data::Item> items) noexcept;

  std::uint32_t evict(std::uint32_t cells, EvictReason reason);
  std::uint32_t free_window_cells(std::uint32_t wanted);  // until so many are free in each window pool
  std::uint32_t compact(std::uint64_t budget_bytes);      // no step may be open
  std::uint32_t compact(std::size_t pool, std::uint32_t budget);
  bool is_fragmented(const CellPool& pool) const;
  void compact_if_fragmented() noexcept;
  std::uint32_t gather_runs(std::size_t pool, std::uint32_t budget);   // these two move so many
  std::uint32_t empty_blocks(std::size_t pool, std::uint32_t budget);  // cells at most, and return how many
  // All or nothing.
  std::uint32_t move_cells(std::size_t pool, const CellMoves& moves, RunList::Relocation& lists);

  // Of the layer's stored K; null: unknown.
  const RopeParams* rope(std::uint32_t layer) const {
    const std::uint32_t id = config.layers[layer].rope_id;
    return id < config.ropes.size() ? &config.ropes[id] : nullptr;
  }
  // Whether K depends on positions; throws Unsupported if the rope of a layer is unknown.
  bool rotates(const char* method) const;
  std::vector<const RopeParams*> ropes_of_stored_k() const;  // per layer; null: stores none
  std::uint64_t k_bytes_per_cell() const;                    // of all layers
  // Moves the tokens of `span`, one at least, to position / divisor and writes their K anew
  // for where they come to stand, in new cells where others have theirs too. All or nothing;
  // false: there are not enough cells.
  bool divide(Sequence& sequence, Span span, Pos divisor, bool rotates);
  // Writes K of moved tokens anew if the sequence has many rotations and there are cells.
  void straighten(Sequence& sequence) noexcept;
  struct Copies {
    RunList runs;  // holds the cells, at positions from 0 on
    std::vector<BlockIndex> to_commit;
  };
  // Takes `count` cells; null: that many are not free.
  std::optional<Copies> take_copies(std::uint32_t count);
  double now() const { return config.clock(); }
  void touch() { ++generation; }
  std::size_t pools() const { return 1 + windows.size(); }
  CellPool& pool(std::size_t index) { return index == 0 ? base : windows[index - 1]; }
  const CellPool& pool(std::size_t index) const { return index == 0 ? base : windows[index - 1]; }
  const CellPool& pool_of(std::uint32_t layer) const { return pool(config.layers[layer].pool); }
  static RunList& runs_of(Sequence& sequence, std::size_t pool) {
    return pool == 0 ? sequence.runs : sequence.windows[pool - 1].runs;
  }
  static const RunList& runs_of(const Sequence& sequence, std::size_t pool) {
    return pool == 0 ? sequence.runs : sequence.windows[pool - 1].runs;
  }

  CacheConfig config;
  Backend& backend;
  const std::uint64_t cache_id;  // unique in the process; plans carry it
  std::shared_ptr<Link> link = std::make_shared<Link>();

  CellPool base;                 // pool 0
  std::deque<CellPool> windows;  // pools 1, 2, …; they stay where they are
  StatePool states;
  std::uint32_t lacking_states = 0;  // slots that the last plan() did not find
  LruPolicy policy;
  PrefixTree tree;
  ResumePoints points;
  std::unordered_map<SeqId, Sequence> sequences;
  std::uint64_t last_seq = 0;

  Step::Impl* open_step = nullptr;

  // Memory of plan() and finish(), kept between steps.
  struct Scratch {
    std::uint64_t plans = 0;
    std::vector<CellRequest> wanted;
    FoundCells found;
    std::vector<Run> runs;
  };
  Scratch scratch;

  std::uint64_t generation = 1;
  std::uint64_t alloc_failures = 0;
  std::uint64_t evicted_cells[3] = {0, 0, 0};  // by EvictReason
  std::uint64_t match_query_tokens = 0, match_hit_tokens = 0, match_no_resume_point_tokens = 0;
  std::uint64_t points_made = 0, points_used = 0;
  std::uint64_t reclaim_ticks = 0, reclaim_runs = 0;
  std::uint64_t cells_copied = 0, k_bytes_rewritten = 0;
  std::uint64_t compactions = 0, compacted_cells = 0;
  std::uint32_t compaction_pause = 0, last_compaction_pause = 0;  // ticks until the next try
};

struct Step::Impl {
  std::shared_ptr<Cache::Impl::Link> link;
  std::shared_ptr<const Plan::Data> plan;
  std::vector<Pos> positions;
  // Of one pool.
  struct Part {
    std::vector<CellIndex> cells;             // per row
    std::optional<AttentionBatch> attention;  // made when it is first asked for
  };
  Part base;
  std::vector<Part> windows;
  std::vector<bool> written;  // per layer
  // Of recurrent layers: which parts are done, where each request's state comes from and goes to.
  std::vector<bool> conv_done, scan_done;
  std::vector<StateStretch> stretches;
  enum class State : std::uint8_t { open, finished, rolled_back } state = State::open;

  // The cache, locked by the caller; throws if it is gone or the step is over.
  Cache::Impl& cache(const char* method) const;
  void check_layer(std::uint32_t layer, const Cache::Impl& cache, const char* method) const;
  // The layer, which must store its own K and V.
  const LayerSpec& check_stored(std::uint32_t layer, const Cache::Impl& cache, const char* method) const;
  Part& part(std::size_t pool) { return pool == 0 ? base : windows[pool - 1]; }
  const AttentionBatch& batch(std::size_t pool);
  void check_computes(const char* method) const;  // throws InvalidArgument in a step that imports
  // The layer, which must have such a part.
  const RecurrentSpec& check_recurrent(std::uint32_t layer, const Cache::Impl& cache,
                                       const char* method) const;
  void check_states_done(const Cache::Impl& cache) const;  // throws InvalidArgument
  void close(State how);                                   // with the lock held
};

// `span`, or the bounds of the sequence; throws InvalidArgument unless it lies within [0, bounds.end].
Span checked_span(std::optional<Span> span, Span bounds, const char* method);

// What else is possible where window pools stand in the way.
inline constexpr const char* kKeepAllCells =
    "keep all cells (windows=\"full\" of Python's CacheConfig, layers in pool 0)";

inline std::string where(const char* method) { return std::string("[Cache.") + method + "] "; }

}  // namespace pykv
