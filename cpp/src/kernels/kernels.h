// Floor 1. The arithmetic of the CPU backend: raw pointers and strides, no cells, no
// handles, no checks, no allocation. Every algorithm is written once, in a *.inl.h over
// the small vector vocabulary of vec_*.inl.h, and compiled once per tier.
//
// Everything that is a matrix product, linear layers and both stages of attention, is
// the same two steps: decode a piece of the right-hand matrix into a float32 tile of
// panels, 16 outputs wide and element-major, then multiply rows with it. An output
// element is one chain of fused (scalar tier: plain) multiply-adds over ascending k,
// carried across tiles through memory, so its bits depend neither on the number of rows
// nor on where tiles begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/activations.h"
#include "pykv/block_layout.h"
#include "pykv/dtype.h"
#include "pykv/types.h"

namespace pykv::kernels {

inline constexpr std::uint32_t kPanelWidth = 16;  // outputs of a panel
static_assert(kPanelWidth == kGroupCells, "K groups are read as panels");
inline constexpr std::uint8_t kByteBias = 128;  // dot-product instructions want one operand unsigned

// One panel of a stored matrix, value(k, lane) for 16 lanes: of a weight as panel.h says, of
// K, a group of cells, as block_layout.h says.
struct Panel {
  DType type = DType::f32;
  const std::byte* scales = nullptr;
  const std::byte* fifth = nullptr;  // bits, of 5-bit types
  const std::byte* values = nullptr;
};

// rows [0, rows) of `in` times the panels of a weight matrix; columns [0, channels).
struct LinearTask {
  DType type = DType::f32;
  const std::byte* panels = nullptr;  // the first one
  std::size_t panel_bytes = 0;        // from one to the next
  std::size_t fifth_offset = 0;       // inside a panel
  std::size_t values_offset = 0;
  std::uint32_t channels = 0;  // outputs, 16 a panel, the last panel may be partly used
  std::uint32_t cols = 0;
  std::uint32_t rows = 0;  // at most kLinearRows
  const float* in = nullptr;
  std::size_t in_stride = 0;
  float* out = nullptr;
  std::size_t out_stride = 0;
};
inline constexpr std::uint32_t kLinearRows = 64;

// The same with activations as 8-bit integers.
struct Int8LinearTask {
  DType type = DType::q4_1;           // one for which has_int8_form() holds
  const std::byte* panels = nullptr;  // the first one
  std::size_t panel_bytes = 0;        // from one to the next
  std::size_t fifth_offset = 0;       // inside a panel
  std::size_t values_offset = 0;
  std::uint32_t channels = 0;  // outputs, 16 a panel, the last panel may be partly used
  std::uint32_t cols = 0;      // a multiple of 32
  std::uint32_t rows = 0;
  std::byte* activations = nullptr;  // panels of all rows, read only
  float* out = nullptr;
  std::size_t out_stride = 0;
};

inline constexpr std::uint32_t kMaxHeadDim = 576;  // of K
inline constexpr std::uint32_t kMaxVDim = 512;
inline constexpr std::uint32_t kKTile = 256;           // elements of K decoded at a time
inline constexpr std::uint32_t kQueryBlock = 256;      // queries that share each converted K and V
inline constexpr std::uint32_t kQueryTile = 64;        // of them, whose scores are in work
inline constexpr std::uint32_t kConvertedPanels = 32;  // of K, for a partition in a few pieces

// Slots [first, first + length) of a partition, in cells [cell, cell + length) of one block;
// the tiles are those of one layer and KV head in that block.
struct KvPiece {
  const std::byte* k_tile = nullptr;
  const std::byte* v_tile = nullptr;  // unused if V is a view of K
  std::uint32_t cell = 0;
  std::uint32_t length = 0;
  std::uint32_t first = 0;
  std::uint32_t panel = 0;  // groups of 16 cells that the pieces before it touch
};

// Touched as far as a head's size needs.
struct alignas(64) AttentionScratch {
  float scores[kQueryTile * kPartitionPositions];
  float tile[4 * kPanelWidth * kMaxHeadDim / 2];
  float edge[kQueryTile * 4 * kPanelWidth];
  float floats[kPanelWidth * kMaxHeadDim];
  // Two to a word, as 16-bit integers or bf16.
  float weight_pairs[kQueryTile * kPartitionPositions / 2];
  // What convert_int16 makes of a partition: pairs of K by panels, of V by 16 elements.
  float k_pairs[kConvertedPanels * kPanelWidth * kMaxHeadDim / 2];
  float k_scales[kConvertedPanels * kPanelWidth];
  float v_pairs[kPartitionPositions / 2 * kMaxVDim];
  float v_largest[kPartitionPositions];
};

// Softmax statistics and unnormalized output of some queries over some slots:
// max[i], sum[i] = Σ exp(score - max[i]), out[i * stride + d] = Σ exp(score - max[i]) V[d].
// sum 0 says that query i sees none of them; max and out are then undefined.
struct Partial {
  float* max = nullptr;
  float* sum = nullptr;
  float* out = nullptr;
  std::size_t stride = 0;  // v_dim rounded up to a multiple of 16
};

// A query as the scores of some kernels read it, made once for all partitions.
struct QueryTask {
  TileLayout k, v;
  bool v_view_of_k = false;
  const float* query = nullptr;  // k.dim elements, transformed as K is
  float* prepared = nullptr;     // prepared_floats(k.dim); elsewhere
};
constexpr std::uint32_t prepared_floats(std::uint32_t k_dim) {
  return (k_dim + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
}

// One partition against a block of queries of one KV head. Query i sees those of the slots
// [begins[i], ends[i]) that pieces cover, the first and the last among them; or nothing, if
// both are equal. Neither bound descends with i.
struct PartitionTask {
  TileLayout k, v;
  bool v_view_of_k = false;  // V is the first v.dim elements of K
  std::uint32_t count = 0;   // queries: at most kQueryTile for score and weigh, kQueryBlock in all
  const float* const* queries = nullptr;  // prepared for the scores
  const std::uint32_t* begins = nullptr;
  const std::uint32_t* ends = nullptr;
  std::span<const KvPiece> pieces;  // ascending
  // Tiles of K that the same thread will probably read after this task.
  std::span<const std::byte* const> ahead;
  bool gaps = false;       // between pieces
  bool converted = false;  // by convert_int16, these pieces or more of the partition
  float scale = 0;
  float softcap = 0;                     // 0: none
  const float* slopes = nullptr;         // per query; null: none, and no positions
  const Pos* query_positions = nullptr;  // per query
  const Pos* key_positions = nullptr;    // per slot of the partition, any value in gaps
  Partial result;
};

inline constexpr std::uint32_t kMaxTaps = 32;
inline constexpr std::uint32_t kConvChannels = 256;

// A causal convolution over the rows of a stretch, each channel alone, then perhaps SiLU.
struct ConvTask {
  const float* taps = nullptr;  // [channels / 16][tap_count][16], oldest first; missing channels 0
  const float* bias = nullptr;  // per channel, or null
  std::uint32_t tap_count = 0;  // at most kMaxTaps
  std::uint32_t channels = 0;   // at most kConvChannels
  std::uint32_t rows = 0;
  bool silu = false;
  const float* before = nullptr;  // the last tap_count - 1 inputs, or null: zeros
  float* after = nullptr;         // the same after the stretch; elsewhere
  std::size_t state_stride = 0;
  const float* in = nullptr;
  std::size_t in_stride = 0;
  float* out = nullptr;  // elsewhere
  std::size_t out_stride = 0;
};

// One head of a Mamba-2 layer over a stretch of tokens t, i over the head's elements:
//   state[n][i] = decay[t] * state[n][i] + dt[t] * b[t][n] * x[t][i]
//   out[t][i] = d * x[t][i] + sum over n of c[t][n] * state[n][i]
struct ScanTask {
  std::uint32_t head_dim = 0;
  std::uint32_t state_size = 0;
  std::uint32_t rows = 0;
  const float* before = nullptr;  // state [state_size][head_dim], or null: zeros
  float* after = nullptr;         // elsewhere
  const float* x = nullptr;
  const float* b = nullptr;
  const float* c = nullptr;
  std::size_t in_stride = 0;  // of x, b and c
  const float* dt = nullptr;
  const float* decay = nullptr;
  float d = 0;
  float* out = nullptr;  // elsewhere
  std::size_t out_stride = 0;
};

struct Kernels {
  const char* name;
  // In place, `blocks` times n elements, n a power of two from 16 on: the orthonormal
  // Walsh-Hadamard transform, its own inverse. The same bits on every tier.
  void (*hadamard)(float* x, std::uint32_t n, std::uint32_t blocks);
  // What attend() reads of the cache, as float32 tiles (bit-equal to decode_row).
  // Elements [k0, k0 + count) of a panel, 16 lanes each: multiples of 32; bf16 of 2, f16 and
  // f32 any.
  void (*decode_panel)(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile);
  // Elements [dim, dim + 16) of `count` cells of V from `cell` on; 0 past v_dim.
  void (*decode_cells)(const std::byte* v_tile, const TileLayout& layout, std::uint32_t dim,
                       std::uint32_t cell, std::uint32_t count, float* tile);
  // encode_row() of f16 and of q8_0, bit for bit.
  void (*encode_f16)(const float* x, std::size_t n, std::byte* out);
  void (*encode_q8_0)(const float* x, std::size_t n, std::byte* out);
  void (*linear)(const LinearTask& task);
  void (*quantize)(const QuantizeTask& task);
  void (*linear_int8)(const Int8LinearTask& task);
  // Copies the query: what score() reads.
  void (*prepare)(const QueryTask& task);
  // Products q·k for the task's pieces, left in the scratch. A partition's pieces may be scored
  // in several calls, with other queries (turned against another rotation) in each.
  void (*score)(const PartitionTask& task, AttentionScratch& scratch);
  // Softmax and weighted sum over all pieces, once all are scored.
  void (*weigh)(const PartitionTask& task, AttentionScratch& scratch);
  // The same on 16-bit integers, where the tier multiplies those faster.
  // Converts K and V of a partition once for many queries; null where the tier does not. False: each
  // score_int16 and weigh_int16 has to, the pieces are too many or of another type.
  bool (*convert_int16)(const PartitionTask& task, AttentionScratch& scratch);
  void (*prepare_int16)(const QueryTask& task);
  void (*score_int16)(const PartitionTask& task, AttentionScratch& scratch);
  void (*weigh_int16)(const PartitionTask& task, AttentionScratch& scratch);
  // The same with factors rounded to bf16, on the tier that multiplies those faster.
  void (*prepare_bf16)(const QueryTask& task);
  void (*score_bf16)(const PartitionTask& task, AttentionScratch& scratch);
  void (*weigh_bf16)(const PartitionTask& task, AttentionScratch& scratch);
  // running := running merged with the later slots of `next`, for `count` queries; dims = stride.
  void (*merge)(const Partial& running, const Partial& next, std::uint32_t count, std::uint32_t dims);
  // Query i's output; `sink` (or null) is one more logit, which has no value.
  void (*normalize)(const Partial& done, std::uint32_t i, std::uint32_t dims, const float* sink, float* out);
  // out = gain * x / sqrt(mean(x²) + epsilon); x may be out.
  void (*rms_norm)(const float* x, const float* gain, float epsilon, std::uint32_t n, float* out);
  void (*silu_mul)(float* gate, const float* up, std::size_t n);
  void (*gelu_mul)(float* gate, const float* up, std::size_t n);
  void (*clamped_silu_mul)(float* gate, const float* up, std::size_t n);
  void (*softcap)(float* x, float cap, std::size_t n);
  void (*add)(float* accumulator, const float* x, std::size_t n);
  void (*convolve)(const ConvTask& task);
  void (*scan)(const ScanTask& task);
  // Loops of one kind of work, for measuring limits; each returns the operations (a
  // multiply-add is two) or bytes it did. sink: three numbers.
  std::uint64_t (*burn_f32)(std::uint32_t rounds, float* sink);
  std::uint64_t (*burn_int8)(std::uint32_t rounds, float* sink);
  std::uint64_t (*read_bytes)(const std::byte* from, std::size_t bytes, float* sink);
};

const Kernels* scalar_kernels();
const Kernels* neon_kernels();         // nullptr: not built for, or not possible on, this machine
const Kernels* avx2_kernels();         // likewise
const Kernels* avx512_kernels();       // likewise
const Kernels* avx512_bf16_kernels();  // likewise

// Tiers of this machine, best last.
std::span<const Kernels* const> available_kernels();
const Kernels* find_kernels(std::string_view name);  // nullptr if there is none

}  // namespace pykv::kernels
