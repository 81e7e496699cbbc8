// Floor 2. The machine that computes. Exactly one implementation is built
// (cpp/src/backend_cpu/ or backend_cuda/); both define this class. Above this floor a
// row is a handle, never a pointer.
//
// Batch invariance (settled, not a mode): the bits of an output row depend only on that
// row's inputs and, in attention, on positions: never on the number of rows, their
// order, the thread count, the chunk a prompt was cut into, where cells lie or who
// shares them. Two tiers of instruction sets may differ from each other.
//
// Operations on rows and write_kv may return before they have run; the rest of this class sees them
// done, and what they read must not change by other means. Spans need to last for the call alone.
//
// Errors: every size and handle is checked, in release builds (InvalidArgument).
// Threads: any; a call waits for the one that is inside and uses up to `threads` threads
// itself. Destroying it needs the last call to have returned. A forked child gets
// Unsupported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pykv/block_layout.h"
#include "pykv/dtype.h"
#include "pykv/layer_table.h"
#include "pykv/precision.h"
#include "pykv/rope.h"
#include "pykv/state_layout.h"
#include "pykv/types.h"

namespace pykv {

using BufferId = Id<struct BufferTag, std::uint32_t>;
using WeightId = Id<struct WeightTag, std::uint32_t>;
using PoolId = Id<struct PoolTag, std::uint32_t>;
using StatesId = Id<struct StatesTag, std::uint32_t>;

// Rows [first, first + count) of a float32 buffer; the first `width` elements of each, at
// most the buffer's width. Operations refuse inputs that share rows with outputs, except
// exactly the same rows where rows keep their places (rms_norm, silu_mul, gelu_mul, multiply, add).
// count 0 is no work.
struct Rows {
  BufferId buffer;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t width = 0;
};

// A stretch of one sequence as attention reads it: token i of it has position first + i, slot
// slot + i, and lies in cell + i.
//
// A slot is the token's place in the order of its sequence. Slots count the partitions of 256
// and define the bits of a result; a row sees slots up to its own. In a sequence that was
// never divided a token's slot is its position; where several tokens share a position, slots
// keep them apart. Over the segments of a group slots ascend strictly and positions never
// descend; both may leave gaps.
struct Segment {
  Pos first = 0;  // logical position of the first token
  CellIndex cell = 0;
  std::uint32_t length = 0;
  Pos rotation = 0;  // logical minus stored position, any value
  std::uint32_t slot = 0;
};

// Queries of one sequence: row i of the group has position first_position + i and slot
// first_slot + i, which lies in one of the group's segments, at that position.
struct AttentionGroup {
  std::uint32_t first_row = 0, rows = 0;
  Pos first_position = 0;
  std::uint32_t first_segment = 0, segments = 0;  // into AttentionBatch::segments
  std::uint32_t first_slot = 0;
};

struct AttentionBatch {
  std::vector<Segment> segments;
  std::vector<AttentionGroup> groups;
};

// score = scale * q·k; with softcap, softcap * tanh(score / softcap); with slopes, plus
// slope * (key position - query position); then softmax over what the row sees and its sink.
struct AttentionParams {
  std::uint32_t heads = 0;                // query heads, a multiple of the layer's kv_heads
  float scale = 0;                        // usually 1 / sqrt(k_dim)
  float softcap = 0;                      // 0: none
  std::span<const float> sinks{};         // per query head or empty: one more logit, without value
  std::span<const float> alibi_slopes{};  // per query head or empty
  // What both products may be rounded to: precision.h.
  Precision precision = Precision::exact;
  // Step::attend sets these two from the layer table and CacheConfig::ropes.
  Window window{};
  const RopeParams* rope = nullptr;  // of stored K; needed where a segment has a rotation
};

// K on its way to other positions: row i by deltas[i], with the rope that turned it.
struct KeyMove {
  std::span<const Pos> deltas;
  RopeParams rope;
};

// The next rows of one sequence in a recurrent layer: they start from the state in slot `read`
// (none: zeros) and leave the state after the last of them in slot `write`, another one.
struct StateStretch {
  std::uint32_t first_row = 0, rows = 0;
  std::optional<StateSlot> read;
  StateSlot write;
};

// Part of each slot, from element `offset` on (StateLayout), and stretches that follow each
// other and cover all rows. No slot is written twice or both read and written in one call.
struct StateBatch {
  StatesId states;
  std::uint32_t offset = 0;
  std::span<const StateStretch> stretches;
};

struct ConvParams {
  WeightId taps;  // [channels, taps], f32 or f16, the newest input's last; 2 channels, at most 32 taps
  std::optional<WeightId> bias;  // [1, channels]
  bool silu = false;             // of the sum
};

// Mamba-2: head h of `heads` belongs to group h / (heads / groups) of b and c. With
// dt = softplus(input + dt_bias[h]), state = exp(dt * a[h]) * state + dt * b · x, out = c ·
// state + d[h] * x.
struct ScanParams {
  std::uint32_t heads = 0, head_dim = 0, groups = 0, state_size = 0;
  WeightId a, d, dt_bias;  // [1, heads]; a is negative
};

struct BackendConfig {
  std::uint32_t threads = 0;  // 0: number of cores this process may use
  std::string isa;            // "" or "auto", "scalar", "neon", "avx2", "avx512", "avx512_bf16"
};

// What a machine can do at most: float32 and 8-bit integer operations (a multiply-add is
// two), bytes read from memory.
enum class Limit : std::uint8_t { f32_operations, int8_operations, read_bytes };

class Backend {
 public:
  explicit Backend(const BackendConfig& config);  // throws InvalidArgument, Unsupported
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  static const char* name();                         // "cpu" or "cuda"
  static std::vector<std::string> available_isas();  // best last
  const std::string& isa() const;                    // tier in use
  std::uint32_t threads() const;
  void set_threads(std::uint32_t threads);  // results do not change
  // Returns when all that was asked for has been done. Whoever reads results need not call it.
  void synchronize();

  // --- float32 row buffers ---------------------------------------------------
  BufferId create_buffer(std::uint32_t rows, std::uint32_t width);  // zeroed; OutOfMemory
  void destroy_buffer(BufferId buffer);
  void upload(Rows to, std::span<const float> from);
  void download(Rows from, std::span<float> to) const;

  // --- pool memory -----------------------------------------------------------
  // Reserves address space for `blocks` blocks without touching it.
  PoolId create_pool(const BlockLayout& layout, std::uint32_t blocks);
  void destroy_pool(PoolId pool);
  // Makes blocks usable, zero-filled; on failure throws OutOfMemory and none is.
  void commit_blocks(PoolId pool, std::span<const BlockIndex> blocks);
  // Gives their memory back to the system; contents are lost. Needs no memory itself if the
  // blocks ascend.
  void release_blocks(PoolId pool, std::span<const BlockIndex> blocks);

  // Overwrites the stored K and V of cells of a block, bit i for its cell i, in all layers, so
  // that they decode to NaN. Builds with PYKV_POISON do it to cells that nobody holds.
  void poison(PoolId pool, BlockIndex block, std::uint64_t cells);

  // --- cache rows ------------------------------------------------------------
  // Encodes row i of k [n, kv_heads * k_dim] and v [n, kv_heads * v_dim] into cells[i]. v is
  // Rows{} where V is a view of K. Refused for a layer that borrows its KV.
  void write_kv(PoolId pool, std::uint32_t layer, Rows k, Rows v, std::span<const CellIndex> cells);
  // Decodes the stored values of cells (tests, export), K moved where deltas are given. Same
  // shapes.
  void read_kv(PoolId pool, std::uint32_t layer, std::span<const CellIndex> cells, std::span<float> k,
               std::span<float> v, const KeyMove& move = {}) const;
  // Rows as they are stored, in GGUF's row layout and transformed where the layout says so:
  // k [n, row_bytes(type, kv_heads * k_dim)], v likewise, no bytes where V is a view of K. K of
  // row i is moved by move.deltas[i] as rewrite_k does it; 0 leaves its bytes as they are.
  void export_rows(PoolId pool, std::uint32_t layer, std::span<const CellIndex> cells, const KeyMove& move,
                   std::span<std::byte> k, std::span<std::byte> v) const;
  // Puts such rows, any bytes, into cells, of which none is named twice.
  void import_rows(PoolId pool, std::uint32_t layer, std::span<const CellIndex> cells,
                   std::span<const std::byte> k, std::span<const std::byte> v);
  // q [n, heads * k_dim] -> out [n, heads * v_dim]: softmax(scores) V per group. A segment with
  // rotation r is read with the query turned by RoPE(-r): stored K is never touched.
  void attend(PoolId pool, std::uint32_t layer, Rows q, Rows out, const AttentionBatch& batch,
              const AttentionParams& params);

  // Cell to[i] gets the K of cell from[i], moved by deltas[i] positions, in every layer that
  // ropes[layer] is given for (null: none): decoded, turned by RoPE(deltas[i]) and encoded
  // again; with delta 0 or rope.dims 0 the bytes are copied. V is not touched. `to` names no
  // cell twice; from[i] may be to[i] but no other cell of `to`. What can fail does so before
  // the first byte is written.
  void rewrite_k(PoolId pool, std::span<const CellIndex> from, std::span<const CellIndex> to,
                 std::span<const Pos> deltas, std::span<const RopeParams* const> ropes);
  // Cell to[i] gets the bytes of cell from[i], K and V of all layers. The same rule for cells.
  void copy_cells(PoolId pool, std::span<const CellIndex> from, std::span<const CellIndex> to);

  // --- states of recurrent layers ---------------------------------------------
  // Reserves address space for `slots` slots of `slot_bytes`, a multiple of 4096.
  StatesId create_states(std::uint64_t slot_bytes, std::uint32_t slots);
  void destroy_states(StatesId states);
  // Makes a slot usable; false: the system has no memory.
  bool commit_slot(StatesId states, StateSlot slot);
  void release_slot(StatesId states, StateSlot slot);
  // Elements [offset, offset + size) of a slot.
  void read_state(StatesId states, StateSlot slot, std::uint32_t offset, std::span<float> to) const;
  void write_state(StatesId states, StateSlot slot, std::uint32_t offset, std::span<const float> from);
  // out row t = the causal convolution of rows t - taps + 1 … t of its stretch, each element
  // alone. The part has the last taps - 1 rows, [taps - 1][width].
  void causal_conv(const StateBatch& batch, const ConvParams& params, Rows in, Rows out);
  // x_b_c [n, heads * head_dim + 2 * groups * state_size]: x, then b, then c; dt [n, heads]; out
  // [n, heads * head_dim]. The part has [heads][state_size][head_dim].
  void scan(const StateBatch& batch, const ScanParams& params, Rows x_b_c, Rows dt, Rows out);

  // --- model operations ------------------------------------------------------
  // Weight matrix [rows = outputs, cols = inputs] in GGUF's row layout; copied and
  // repacked without changing a value, the caller's bytes are not kept. Any DType.
  // `precision` is that of linear(); a fast one have q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k
  // and q6_k.
  WeightId create_weight(DType type, std::uint32_t rows, std::uint32_t cols, std::span<const std::byte> bytes,
                         Precision precision = Precision::fast);
  std::size_t weight_bytes() const;  // resident, all weights

  void embed(WeightId table, std::span<const Token> tokens, Rows out);  // row = table[token]
  void linear(WeightId weight, Rows in, Rows out);                      // out = in · weightᵀ
  // The same for up to kMaxLinears weights, whose outputs are apart, on one input: cheaper
  // than one after the other, with the same bits. With fast weights, rows of `in` named in
  // `precise` are rounded to 16 bits, not to 8, at the price of passing the weights once more for
  // up to 16 of them.
  void linear(std::span<const WeightId> weights, Rows in, std::span<const Rows> outs,
              std::span<const std::uint32_t> precise = {});
  static constexpr std::size_t kMaxLinears = 8;
  // Of each group of as many elements as the gain has (rows 1), which divide the width; or of
  // `parts` equal groups, whose gains follow each other.
  void rms_norm(Rows in, WeightId gain, float epsilon, Rows out, std::uint32_t parts = 0);
  // Turns the rows of positions[i] in place and multiplies what was turned by `magnitude`;
  // dims 0 is refused.
  void rope(Rows x, std::uint32_t heads, const RopeParams& params, std::span<const Pos> positions,
            float magnitude = 1.0F);
  void silu_mul(Rows gate, Rows up);  // gate = silu(gate) * up
  void gelu_mul(Rows gate, Rows up);  // gate = gelu(gate) * up, gelu as tanh approximates it
  // gate = g / (1 + e^(-1.702 g)) * (u + 1) with g = gate up to 7, u = up within [-7, 7]
  void clamped_silu_mul(Rows gate, Rows up);
  void multiply(Rows x, Rows by);        // x *= by
  void add(Rows accumulator, Rows x);    // accumulator += x
  void add_bias(Rows x, WeightId bias);  // each row += bias (rows 1)
  void scale(Rows x, float factor);      // x *= factor
  void softcap(Rows x, float cap);       // x = cap * tanh(x / cap); cap above 0
  void fill(Rows x, float value);
  // out row i = in row rows[i]
  void gather(Rows in, std::span<const std::uint32_t> rows, Rows out);
  // out row rows[i] += factors[i] * in row i; rows ascend
  void scatter_add(Rows in, std::span<const std::uint32_t> rows, std::span<const float> factors, Rows out);

  // --- measurement -----------------------------------------------------------
  // Per second, reached by all threads together on the tier in use in a loop of nothing
  // else: the best of the tries that fit into `seconds`. InvalidArgument unless 0 to 60.
  double measure_limit(Limit limit, double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pykv
