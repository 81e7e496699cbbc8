// Floor 3. One KV pool for all sessions: sequences, prefix sharing, plan / commit.
//
//   open()    a sequence that starts from the longest cached prefix of its tokens
//   plan()    const: finds cells for a step, or says "does not fit" (nullopt)
//   commit()  touches memory first, then publishes; changes nothing if it throws
//   Step      write() and attend() per layer; finish() makes tokens matchable,
//             rollback() (also the destructor) takes everything back
//
// Exact lineage: tokens below exact_upto(seq) have KV that a cold run would give. Only
// they enter the prefix tree. A sequence that appends a count without token ids ends its
// exact lineage there; one that is edited, at the first position that changed: what comes
// behind a removed, moved or inserted token was computed with other tokens before it.
// What is in the tree already stays matchable. A sequence may have gaps; new tokens come
// behind its last one. Exact tokens are stored once: where finish() finds that another
// session has made them ready meanwhile, the sequence takes those cells and frees its own.
//
// Windows: a pool of layers with a window has the cells of a sequence's last tokens only, from
// the first one that its next token sees. What a step has appended can be removed again until the
// sequence is planned anew; behind that a sequence goes back to a *resume point* (rewind()): a
// place in the tree where the window's cells were kept. They are made where a prompt ends but for
// its last token, where a sequence ends, where an open() found more tokens than it could continue
// from, and every resume_spacing tokens; the least recently used ones go. open() and match() find
// the longest prefix that continues exactly: at a resume point, or where a live sequence has the
// cells.
//
// Recurrent layers have one state per sequence, of all its tokens together. A step reads the state
// at its beginning and makes that at its end; forks share it. A sequence goes back only to where a
// state was kept: a resume point, which is then made at the end of a step, or the end of a live
// sequence. Steps should therefore end at next_point(). What would need a state that nobody has, as
// removing from the middle, is Unsupported; removing all tokens is always possible.
//
// What is charged: a step in progress holds its cells as "computing"; a live sequence's
// as "active"; what only resume points keep is "resume"; what only the tree keeps is "idle" and
// may be evicted leaf first.
//
// Threads: every method may be called from any thread (one lock inside). One step at a
// time: commit() throws Busy while another Step is open. Reads are safe beside a step and
// see its sequences as they were before it. Changing, forking or erasing a sequence of
// the open step throws Busy; all others may change. A Step that outlives its cache throws
// InvalidArgument. A forked child gets Unsupported.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pykv/backend.h"
#include "pykv/block_layout.h"
#include "pykv/layer_table.h"
#include "pykv/policy.h"
#include "pykv/prefix_tree.h"
#include "pykv/state_layout.h"
#include "pykv/types.h"

namespace pykv {

struct CacheConfig {
  LayerTable layers;
  // What recurrent layers keep, by layer; empty: there are none. A layer may have K and V too.
  RecurrentTable recurrent;
  // Rotary embeddings of stored K, by LayerSpec::rope_id. For a layer whose id has no entry it
  // is unknown: what changes positions of stored tokens is then refused.
  std::vector<RopeParams> ropes;
  DType type_k = DType::f16;
  DType type_v = DType::f16;
  bool hadamard = true;          // transform quantized K and V where their sizes allow (block_layout.h)
  std::uint64_t cells = 0;       // capacity of pool 0, rounded up to whole blocks; 1 … 2^27
  std::uint64_t pool_bytes = 0;  // hard budget of committed bytes in all pools, 0: as many as cells
                                 // need; where it affords fewer cells, those are the capacity
  Watermarks watermarks;
  // Pools of windows (layer_table.h) have cells for what so many sequences need at once, which is
  // for each the window and a step's tokens, at most as many as pool 0; and for the resume points.
  std::uint32_t max_sequences = 16;  // of recurrent layers: two states each, and those of the points
  std::uint32_t step_tokens = 512;
  std::uint64_t window_cells = 0;  // of each window pool instead, rounded up to whole blocks; 0: as above
  // Budget of resume points; nullopt: a tenth of pool 0's bytes, at least two points. 0: none.
  std::optional<std::uint64_t> resume_bytes;
  std::uint32_t resume_spacing = 512;  // tokens between the points of a long sequence, 0: none there
  std::uint64_t compact_bytes = std::uint64_t{4} << 20;  // reclaim() moves at most so many, 0: none
  EdgeHash edge_hash = default_edge_hash;
  Clock clock;  // default: steady clock
};

struct StepRequest {
  SeqId seq;
  std::uint32_t count = 0;        // tokens to append, >= 1
  std::span<const Token> tokens;  // empty, or `count` ids
};

// Result of plan(): valid until the cache changes in any way.
class Plan {
 public:
  std::uint32_t tokens() const;            // sum of counts
  std::uint64_t blocks_to_commit() const;  // memory touched by commit()

  struct Data;  // cpp/src/cache/cache_impl.h

 private:
  friend class Cache;
  std::shared_ptr<const Data> data_;
};

class Cache;

// An open step. Rows are numbered over all requests in plan order.
class Step {
 public:
  Step(Step&&) noexcept;
  Step& operator=(Step&&) = delete;
  ~Step();  // rolls back if neither finished nor rolled back

  std::uint32_t rows() const;
  std::span<const Pos> positions() const;  // of each row
  // Groups in plan order. Made when it is first asked for, by this or attend(): O(runs).
  const AttentionBatch& attention() const;
  Backend& backend() const;  // the cache's; throws if the cache is gone
  const LayerSpec& layer(std::uint32_t layer) const;

  // k [rows, kv_heads * k_dim], v [rows, kv_heads * v_dim], all rows of the step. Rows{} for
  // v where it is a view of K. Refused for a layer that takes its KV from another.
  void write(std::uint32_t layer, Rows k, Rows v);
  // Instead of write(): all rows of the step as Cache::export_rows gives them, of a cache with
  // the same types, transforms and positions. After plan_import() those that the layer's pool has.
  void import_rows(std::uint32_t layer, std::span<const std::byte> k, std::span<const std::byte> v);
  // q [rows, heads * k_dim] -> out [rows, heads * v_dim]; causal over each row's own
  // sequence including this step's tokens, as far as the layer's window reaches. write() of
  // the layer that stores its KV must have come before. params.window and params.rope are set
  // here; sinks must be given if, and only if, the layer has them. With `only` (empty: all), rows of
  // the step that ascend, q and out are theirs, one after the other, and the others' are not computed.
  void attend(std::uint32_t layer, Rows q, Rows out, const AttentionParams& params,
              std::span<const std::uint32_t> only = {});

  // Of a recurrent layer, all rows of the step, each sequence from its own state on. Both parts of
  // a layer that has both must be done once. Sizes are checked against CacheConfig::recurrent.
  void conv(std::uint32_t layer, const ConvParams& params, Rows in, Rows out);
  void scan(std::uint32_t layer, const ScanParams& params, Rows x_b_c, Rows dt, Rows out);
  // Instead: the states of a layer as numbers, those at the beginning of the step for each request
  // in plan order (0 for an empty sequence), and at its end. [requests, conv_elements + scan_elements]
  void read_states(std::uint32_t layer, std::span<float> to) const;
  void write_states(std::uint32_t layer, std::span<const float> from);

  // Publishes. Throws InvalidArgument if a layer with KV or a state was not written.
  void finish();
  void rollback();

  struct Impl;  // cpp/src/cache/cache_impl.h

 private:
  friend class Cache;
  explicit Step(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

inline constexpr std::uint64_t kMaxPoolCells = std::uint64_t{1} << 27;

// Slots for the states of recurrent layers.
struct StateStats {
  std::uint64_t slots = 0, slots_used = 0, slots_resume = 0;  // used: by sequences, steps and points
  std::uint64_t bytes_per_slot = 0, bytes_committed = 0;
};

struct PoolStats {
  Window window;             // none: pool 0, which keeps all tokens
  std::uint32_t layers = 0;  // that store K and V in it
  std::uint64_t cells_capacity = 0, cells_computing = 0, cells_active = 0, cells_pinned = 0, cells_resume = 0,
                cells_idle = 0, cells_free = 0;  // states sum to capacity
  std::uint64_t bytes_reserved = 0, bytes_committed = 0, bytes_per_cell = 0;
};

// Cells and bytes per cell are those of pool 0, whose cells are the tokens of the cache; bytes
// reserved, committed and of the budget are those of all pools.
struct CacheStats {
  std::uint64_t cells_capacity = 0, cells_computing = 0, cells_active = 0, cells_pinned = 0, cells_resume = 0,
                cells_idle = 0, cells_free = 0;  // states sum to capacity
  std::uint64_t bytes_reserved = 0, bytes_committed = 0, bytes_per_cell = 0, bytes_budget = 0;
  std::uint64_t sequences = 0, tree_nodes = 0, tree_tokens = 0;
  std::uint64_t evicted_cells_watermark = 0, evicted_cells_demand = 0, evicted_cells_request = 0;
  std::uint64_t match_query_tokens = 0, match_hit_tokens = 0;  // over open()
  std::uint64_t match_no_resume_point_tokens = 0;              // that were there, but not to continue from
  std::uint64_t resume_points = 0, resume_points_made = 0, resume_points_dropped = 0, resume_points_used = 0;
  std::uint64_t resume_bytes = 0, resume_bytes_budget = 0;  // of cells and states that points hold
  std::uint64_t alloc_failures = 0;                         // plan() answers "does not fit"
  std::uint64_t reclaim_ticks = 0, reclaim_runs = 0;
  std::uint64_t cells_copied = 0, k_bytes_rewritten = 0;  // by divide() and shift()
  std::uint64_t compactions = 0, compacted_cells = 0;     // that moved something; cells moved
  std::uint64_t generation = 0;                           // changes with every change of the cache
  std::vector<PoolStats> pools;
  StateStats states;
};

// What stats() of a new cache says: capacities and bytes of each pool, of slots and of resume points.
// Reserves nothing. Throws as Cache().
CacheStats memory_plan(const CacheConfig& config);

enum class EvictReason : std::uint8_t { watermark, demand, request };

class Cache {
 public:
  // `backend` must outlive the cache. Throws InvalidArgument, Unsupported, OutOfMemory.
  Cache(CacheConfig config, Backend& backend);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // --- sequences -------------------------------------------------------------
  SeqId create(NamespaceId ns = {});  // empty, exact

  struct Opened {
    SeqId seq;
    std::uint32_t reused = 0;   // tokens taken from the tree, < tokens.size()
    std::uint32_t pending = 0;  // further ones another session is computing
    // Ready tokens behind those that could not be reused because no resume point is there.
    std::uint32_t no_resume_point = 0;
  };
  // A sequence that already holds the longest ready prefix of `tokens`, at most all but
  // the last one (whose logits the caller needs) or `max_reuse`. The rest is announced:
  // later open()s with the same tokens see it as pending until this sequence has
  // computed it, appends something else, or ends.
  Opened open(NamespaceId ns, std::span<const Token> tokens,
              std::optional<std::uint32_t> max_reuse = std::nullopt);
  // How many of `tokens` a sequence could start from, and how many are ready in the tree. Without
  // windows both are the same.
  std::uint32_t match(NamespaceId ns, std::span<const Token> tokens) const;
  std::uint32_t stored(NamespaceId ns, std::span<const Token> tokens) const;

  SeqId fork(SeqId seq);                   // O(1)
  void clear(SeqId seq);                   // all tokens; the sequence stays
  void erase(SeqId seq);                   // ends it; exact tokens stay in the tree as idle
  void keep(std::span<const SeqId> kept);  // erases all sequences but these
  void erase_all();                        // every sequence
  Span bounds(SeqId seq) const;            // [first position, last one + 1), [0, 0) if empty
  Pos exact_upto(SeqId seq) const;
  std::vector<Run> runs(SeqId seq, std::uint32_t pool = 0) const;  // in a window pool what it has left
  std::vector<SeqId> sequences() const;
  // Cells of the sequence that another sequence or several hold too.
  std::uint32_t shared_cells(SeqId seq) const;

  // --- edits -----------------------------------------------------------------
  // A span lies within [0, bounds().end], nullopt is all of the sequence; positions that it
  // does not have are passed over. Everything else throws InvalidArgument. Cells are shared
  // as before: what others have of them does not change. What would leave a sequence whose next
  // token sees cells that its window pools have lost is Unsupported; rewind() says where it goes on.
  //
  // Takes off tokens from the end until it has at most `position` of them and continues exactly,
  // and returns where: at `position` itself if the windows' cells are there, else at the deepest
  // resume point before it. The tokens from there on are to be computed again.
  Pos rewind(SeqId seq, Pos position);
  // Where the next step of the sequence should end at the latest so that a resume point that is due
  // can be made there: the end of what is known now, if none is due before. Only caches with
  // recurrent layers need it; for others it is kMaxPos.
  Pos next_point(SeqId seq) const;
  // Makes the end of the sequence, whose tokens are all exact, a resume point (InvalidArgument if
  // they are not). False if there is one, it exceeds the budget, or no layer forgets anything.
  bool mark_resume(SeqId seq);
  void remove(SeqId seq, std::optional<Span> span);  // the others keep their positions. O(log runs)
  // Takes off the tokens from `position` on, and does not keep those as idle that its last step made
  // ready and nobody else has: guesses that were wrong, which no prompt will ask for. As remove() else.
  void discard(SeqId seq, Pos position);
  // `to` gets the tokens of `from`, in the same cells at the same positions, none of which
  // it may have. A prefix of exact tokens in an empty `to` of the same namespace is exact
  // there too. O(log runs), or for each run of the span if tokens of both interleave.
  void copy(SeqId from, std::optional<Span> span, SeqId to);
  // Moves tokens by `delta` positions. They stay behind those before the span, before those
  // behind it, and in [0, kMaxPos). Changes runs only: no cell is taken, no byte of K written;
  // attention turns queries by each run's rotation. Only with more than a few different
  // rotations in the sequence K is written anew, in other cells where they are shared, if
  // there are enough. Throws Unsupported if the rope of a layer is unknown. O(runs of the span).
  void shift(SeqId seq, std::optional<Span> span, Pos delta);
  // Moves tokens to position / divisor (>= 1), not before one in front of the span; several
  // then share a position. Writes K anew, in new cells where others have theirs (OutOfCells).
  // Throws Unsupported if the rope of a layer is unknown, or there are window pools.
  void divide(SeqId seq, std::optional<Span> span, Pos divisor);

  // --- steps -----------------------------------------------------------------
  // nullopt: the free cells or bytes do not suffice in some pool. Window cells that the sequences
  // no longer need are let go. Throws InvalidArgument for unknown
  // or repeated sequences, zero counts, wrong id counts, positions past kMaxPos. Both are
  // O(requests + tokens), whatever the sequences hold, with a fixed number of allocations.
  std::optional<Plan> plan(std::span<const StepRequest> requests) const;
  // The same for all tokens of an empty sequence that another cache has computed: the step takes them by
  // Step::import_rows and write_states, and computes nothing. A window pool has of them what the next
  // token sees, which may be none, and import_rows takes as many rows for its layers.
  std::optional<Plan> plan_import(const StepRequest& request) const;
  Step commit(Plan plan);  // throws StalePlan, OutOfMemory, Busy

  // --- space -----------------------------------------------------------------
  // Evicts idle cells, leaf first, until `cells` more are free or no idle ones are
  // left. Returns how many became free. Cells are those of pool 0.
  std::uint32_t evict(std::uint32_t cells, EvictReason reason);
  // Frees what a step of `tokens` tokens lacks in each pool: where the last plan() lacked slots for
  // states, resume points; of windows first what sequences no
  // longer need, then resume points, least recently used first; then idle cells. Where every pool
  // has so many free cells, evicts as many idle ones. Returns how many cells became free.
  std::uint32_t make_room(std::uint32_t tokens);
  // Moves cells to other cells, at most `budget_bytes` of K and V, and returns how many: runs of
  // less than 16 tokens that follow each other go together into whole free blocks; nearly empty
  // blocks without a lease are emptied into holes of others, emptiest first. Every sequence,
  // fork and prefix keeps its tokens and its bits. Repeated calls go on until one returns 0; 64
  // cells' bytes are enough for each to do so. Throws Busy while a step is open. O(runs and
  // nodes of the cache), so call it between steps now and then.
  std::uint32_t compact(std::uint64_t budget_bytes);
  // One tick: evicts by the watermarks (as if `wanted` more cells were taken), compacts up to
  // CacheConfig::compact_bytes if more than a quarter of the committed cells are holes in blocks
  // in use (no step being open), and gives whole free blocks back beyond a hysteresis of 1/8 of
  // the committed ones.
  std::uint32_t reclaim(std::uint32_t wanted = 0);
  void set_watermarks(const Watermarks& marks);
  Watermarks watermarks() const;
  // Forgets every idle prefix (all tiers, all namespaces) and every resume point.
  void reset_prefixes();

  CacheStats stats() const;  // O(1)
  const CacheConfig& config() const;
  const BlockLayout& layout(std::uint32_t pool = 0) const;
  Backend& backend() const;
  std::vector<PrefixTree::NodeView> prefix_nodes() const;
  struct RowValues {
    std::uint32_t rows = 0;   // one for each token
    std::vector<float> k, v;  // [rows, kv_heads * k_dim] and [rows, kv_heads * v_dim]
  };
  // Values of the tokens that `seq` has in `span`, K as attention sees it: where a run has a
  // rotation, turned by it. Of a layer in a window pool those that the sequence has left.
  RowValues read_rows(SeqId seq, std::uint32_t layer, std::optional<Span> span) const;
  struct RowBytes {
    std::uint32_t rows = 0;
    std::vector<std::byte> k, v;  // [rows, row_bytes(type, kv_heads * dim)]; of a view of K none
  };
  // The same tokens as they are stored, in GGUF's row layout and transformed where
  // layout().place(layer) says so. K that was moved is turned to its present position and
  // encoded again; all else is byte for byte what write() stored. Step::import_rows takes it.
  RowBytes export_rows(SeqId seq, std::uint32_t layer, std::optional<Span> span) const;
  // State of a recurrent layer at the end of the sequence, as Step::write_states takes it.
  std::vector<float> export_state(SeqId seq, std::uint32_t layer) const;

  void check_integrity() const;  // every invariant of every part; O(pool)

  struct Impl;  // cpp/src/cache/cache_impl.h

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace pykv
