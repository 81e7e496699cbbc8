// Floor 3, private. What a Cache, its plans and its open step consist of.
//
// Invariants (check_integrity): of every sequence
//   - the runs cover [0, exact_upto) without gaps, rotation 0,
//   - tokens below exact_upto are ready on the holder's path,
//   - exact tokens lie in the cells that the tree has for them: stored once,
//   - the holder stands at exact_upto, or at the end of the announced prompt.
// Every held cell lies in a committed block; committed blocks stay within the budget.
//
// A step appends to the run lists of its sequences in place. Until it is finished readers see
// what lies before its tokens; rollback() cuts them off again, which cannot fail.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/birthplace.h"
#include "pykv/cache.h"
#include "pykv/cell_map.h"
#include "pykv/errors.h"
#include "pykv/run_list.h"

namespace pykv {

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
  PrefixTree::HolderId holder;
  Pos exact_upto = 0;
  // The prompt given to open(), while the part from exact_upto on is announced.
  std::shared_ptr<const std::vector<Token>> announced;
  std::optional<Before> in_step = std::nullopt;  // while it is part of the open step
  std::uint64_t last_plan = 0;                   // number of the last plan() that named it
};

struct Plan::Data {
  struct Item {
    SeqId seq;
    SequenceState* sequence = nullptr;  // as long as the plan is not stale, and in the step
    Pos first = 0;                      // position of its first new token
    std::uint32_t count = 0;
    std::uint32_t first_row = 0;
    std::uint32_t first_span = 0, spans = 0;  // into `cells`
    bool exact = false;                       // ids were given and the lineage was exact: publish at the end
    Pos end() const { return first + static_cast<Pos>(count); }
  };
  std::span<const CellSpan> cells_of(const Item& item) const {
    return std::span(cells).subspan(item.first_span, item.spans);
  }
  std::span<const Token> tokens_of(const Item& item) const {
    return std::span(tokens).subspan(item.first_row, item.count);
  }
  std::uint64_t cache_id = 0;
  std::uint64_t generation = 0;
  std::uint32_t rows = 0;
  std::vector<Item> items;
  std::vector<CellSpan> cells;        // of all items, in token order
  std::vector<Token> tokens;          // one per row, 0 where no id was given
  std::vector<BlockIndex> to_commit;  // ascending, not committed yet
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

  Impl(CacheConfig given, Backend& machine);
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

  // Appends the item's cells to its sequence, all or nothing.
  void take(const Plan::Data& plan, const Plan::Data::Item& item);
  // Undoes take() for those items that went through it.
  void take_back(std::span<const Plan::Data::Item> items) noexcept;

  std::uint32_t evict(std::uint32_t cells, EvictReason reason);
  void release_excess_blocks();
  std::uint32_t compact(std::uint64_t budget_bytes);  // no step may be open
  void compact_if_fragmented() noexcept;
  std::uint32_t gather_runs(std::uint32_t budget);   // these two move so many cells at most
  std::uint32_t empty_blocks(std::uint32_t budget);  // and return how many
  std::uint32_t move_cells(const CellMoves& moves, RunList::Relocation& lists);  // all or nothing

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
  bool is_committed(BlockIndex block) const { return committed[block] != 0; }
  // Adds the blocks of `spans` that have no memory; the list ascends then.
  void add_uncommitted(std::span<const CellSpan> spans, std::vector<BlockIndex>& blocks) const;
  void commit_blocks(std::span<const BlockIndex> blocks);   // throws OutOfMemory, then none is committed
  void release_blocks(std::span<const BlockIndex> blocks);  // needs no memory if they ascend
  void poison(BlockIndex block, std::uint64_t freed);       // with PYKV_POISON, what becomes free
  // Blocks that are not committed are free: every held cell lies in a committed one.
  std::uint64_t free_committed_blocks() const {
    return cells.counts().free_blocks + committed_blocks - cells.block_count();
  }

  CacheConfig config;
  Backend& backend;
  const BlockLayout layout;
  const std::uint64_t cache_id;  // unique in the process; plans carry it
  PoolId pool;
  std::shared_ptr<Link> link = std::make_shared<Link>();

  CellMap cells;
  LruPolicy policy;
  PrefixTree tree;
  std::unordered_map<SeqId, Sequence> sequences;
  std::uint64_t last_seq = 0;

  std::vector<std::uint8_t> committed;  // per block
  std::uint64_t committed_blocks = 0;
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
  std::uint64_t match_query_tokens = 0, match_hit_tokens = 0;
  std::uint64_t reclaim_ticks = 0, reclaim_runs = 0;
  std::uint64_t cells_copied = 0, k_bytes_rewritten = 0;
  std::uint64_t compactions = 0, compacted_cells = 0;
  std::uint32_t compaction_pause = 0, last_compaction_pause = 0;  // ticks until the next try
};

struct Step::Impl {
  std::shared_ptr<Cache::Impl::Link> link;
  std::shared_ptr<const Plan::Data> plan;
  std::vector<Pos> positions;
  std::vector<CellIndex> cells;             // per row
  std::optional<AttentionBatch> attention;  // made when it is first asked for
  std::vector<bool> written;                // per layer
  enum class State : std::uint8_t { open, finished, rolled_back } state = State::open;

  // The cache, locked by the caller; throws if it is gone or the step is over.
  Cache::Impl& cache(const char* method) const;
  void check_layer(std::uint32_t layer, const Cache::Impl& cache, const char* method) const;
  // The layer, which must store its own K and V.
  const LayerSpec& check_stored(std::uint32_t layer, const Cache::Impl& cache, const char* method) const;
  const AttentionBatch& batch();
  void close(State how);  // with the lock held
};

// `span`, or the bounds of the sequence; throws InvalidArgument unless it lies within [0, bounds.end].
Span checked_span(std::optional<Span> span, Span bounds, const char* method);

inline std::string where(const char* method) { return std::string("[Cache.") + method + "] "; }

}  // namespace pykv
