// Kernels stay inside their arguments: every array ends at, or begins behind, a page that
// cannot be touched, in all tiers of this machine and at sizes that are no multiple of a
// vector. A kernel that reads or writes one element too many ends this program with a signal.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "check.h"
#include "kernels/kernels.h"
#include "kernels/panel.h"
#include "pykv/precision.h"
#include "pykv/quant.h"

using namespace pykv;
using namespace pykv::kernels;

namespace {

enum class Side : std::uint8_t { end, begin };  // where the untouchable page is
constexpr Side kSides[] = {Side::end, Side::begin};

// `count` values of T directly beside such a page.
template <class T>
class Fenced {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Fenced(std::size_t count, Side side) : count_(count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t usable = (count * sizeof(T) + page - 1) / page * page;
    mapped_ = usable + 2 * page;
    void* const address = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED ||
        mprotect(static_cast<std::byte*>(address) + page, usable, PROT_READ | PROT_WRITE) != 0)
      throw std::bad_alloc();
    base_ = static_cast<std::byte*>(address);
    std::byte* const data = base_ + page + (side == Side::end ? usable - count * sizeof(T) : 0);
    data_ = reinterpret_cast<T*>(data);
  }
  Fenced(const std::vector<T>& values, Side side) : Fenced(values.size(), side) {
    std::memcpy(data_, values.data(), count_ * sizeof(T));
  }
  ~Fenced() { munmap(base_, mapped_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  T* data() { return data_; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  std::size_t count_;
  std::size_t mapped_ = 0;
  std::byte* base_ = nullptr;
  T* data_ = nullptr;
};

std::vector<float> numbers(std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(static_cast<int>(i * 7 % 23) - 11) / 8.0F;
  return out;
}

std::vector<float> joined(std::vector<float> first, const std::vector<float>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Calls work(tier) once per tier; what it returns must not depend on where arrays lie.
template <class Work>
void on_every_side(Work work) {
  for (const Kernels* tier : available_kernels()) {
    const std::vector<float> at_end = work(*tier, Side::end);
    CHECK(std::memcmp(at_end.data(), work(*tier, Side::begin).data(), at_end.size() * sizeof(float)) == 0);
  }
}

std::uint32_t block_of(DType type) { return traits(type).block_elements; }

std::vector<std::byte> encoded(DType type, std::uint32_t rows, std::uint32_t cols) {
  std::vector<std::byte> out(row_bytes(type, cols) * rows);
  if (type == DType::q4_1) {  // has no encoder: any bytes with finite scales are a row
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i % 20 < 4 ? 0x24 : i);
    return out;
  }
  const std::vector<float> values = numbers(std::size_t{rows} * cols);
  if (is_k_type(type)) {  // nothing encodes them; any bytes with small exponents do
    std::fill(out.begin(), out.end(), std::byte{0x2c});
    return out;
  }
  for (std::uint32_t row = 0; row < rows; ++row)
    encode_row(type, std::span(values).subspan(std::size_t{row} * cols, cols),
               std::span(out).subspan(row * row_bytes(type, cols), row_bytes(type, cols)));
  return out;
}

struct LinearShape {
  DType type;
  std::uint32_t channels, cols, rows;
};

// A matrix of that shape as panels.
struct Weights {
  Weights(const LinearShape& shape, Side side)
      : layout(panel_layout(shape.type, shape.cols)),
        bytes((shape.channels + kPanelWidth - 1) / kPanelWidth * layout.bytes, side) {
    const std::vector<std::byte> source = encoded(shape.type, shape.channels, shape.cols);
    for (std::uint32_t row = 0; row < shape.channels; row += kPanelWidth)
      pack_panel(shape.type, std::min(kPanelWidth, shape.channels - row), shape.cols,
                 source.data() + row * row_bytes(shape.type, shape.cols),
                 bytes.data() + row / kPanelWidth * layout.bytes);
  }

  template <class Task>
  Task task(const LinearShape& shape, Fenced<float>& out) {
    Task task;
    task.type = shape.type;
    task.panels = bytes.data();
    task.panel_bytes = layout.bytes;
    task.fifth_offset = layout.fifth_offset;
    task.values_offset = layout.values_offset;
    task.channels = shape.channels;
    task.cols = shape.cols;
    task.rows = shape.rows;
    task.out = out.data();
    task.out_stride = shape.channels;
    return task;
  }

  PanelLayout layout;
  Fenced<std::byte> bytes;
};

std::vector<float> run_linear(const Kernels& tier, const LinearShape& shape, Side side) {
  Weights weights(shape, side);
  Fenced<float> in(numbers(std::size_t{shape.rows} * shape.cols), side);
  Fenced<float> out(std::size_t{shape.rows} * shape.channels, side);
  auto task = weights.task<LinearTask>(shape, out);
  task.in = in.data();
  task.in_stride = shape.cols;
  tier.linear(task);
  return out.values();
}

std::vector<float> run_linear_int8(const Kernels& tier, const LinearShape& shape, Side side) {
  Weights weights(shape, side);
  Fenced<float> in(numbers(std::size_t{shape.rows} * shape.cols), side);
  Fenced<std::byte> activations(activation_bytes(shape.rows, shape.cols), side);
  for (std::uint32_t row = 0; row < shape.rows; row += kActivationRows) {
    QuantizeTask task;
    task.in = in.data() + std::size_t{row} * shape.cols;
    task.in_stride = shape.cols;
    task.rows = std::min(kActivationRows, shape.rows - row);
    task.last_block = shape.cols / kActivationBlock;
    task.panel = activations.data() + activation_bytes(row, shape.cols);
    tier.quantize(task);
  }
  Fenced<float> out(std::size_t{shape.rows} * shape.channels, side);
  auto task = weights.task<Int8LinearTask>(shape, out);
  task.activations = activations.data();
  tier.linear_int8(task);
  return out.values();
}

struct AttendShape {
  DType type_k, type_v;
  std::uint32_t k_dim, v_dim, queries, positions, first_cell;
  std::uint32_t window = kPartitionPositions;  // slots that a query sees
  bool shaped = false;                         // with softcap, slopes and a sink
  bool view = false;
  Precision precision = Precision::exact;
  bool converted = false;  // once for all queries
};

// Tiles of as many blocks as the positions need, the last one fenced alone.
struct Tiles {
  Tiles(const TileLayout& layout, Side side) : bytes(layout.bytes, side) {
    // Values of one element and scales of one block: any bytes with a small exponent do.
    std::memset(bytes.data(), 0x2c, layout.bytes);
  }
  Fenced<std::byte> bytes;
};

// Holds what the call before left there.
AttentionScratch& used_scratch(Side side) {
  static Fenced<AttentionScratch> at_end(1, Side::end), at_begin(1, Side::begin);
  return *(side == Side::end ? at_end : at_begin).data();
}

std::vector<float> run_attend(const Kernels& tier, const AttendShape& shape, Side side) {
  PartitionTask task;
  task.k = k_tile_layout(shape.type_k, shape.k_dim);
  task.v = v_tile_layout(shape.type_v, shape.v_dim);
  Tiles k(task.k, side), v(task.v, side);
  std::vector<KvPiece> pieces;
  std::uint32_t cell = shape.first_cell, panel = 0;
  for (std::uint32_t first = 0; first < shape.positions;) {
    const std::uint32_t length = std::min(kBlockCells - cell, shape.positions - first);
    pieces.push_back({k.bytes.data(), v.bytes.data(), cell, length, first, panel});
    panel += (cell + length - 1) / kPanelWidth - cell / kPanelWidth + 1;
    first += length;
    cell = 0;
  }
  const std::size_t stride = (shape.v_dim + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
  const bool bf16 = shape.precision == Precision::fastest, exact = shape.precision == Precision::exact;
  Fenced<float> q(numbers(std::size_t{shape.queries} * shape.k_dim), side);
  const std::size_t prepared_floats = kernels::prepared_floats(shape.k_dim);
  Fenced<float> prepared(shape.queries * prepared_floats, side);
  std::vector<const float*> rows;
  std::vector<std::uint32_t> first, seen;  // the last query sees all, those before it one less each
  for (std::uint32_t i = 0; i < shape.queries; ++i) {
    const QueryTask query{task.k, task.v, shape.view, q.data() + std::size_t{i} * shape.k_dim,
                          prepared.data() + i * prepared_floats};
    (exact ? tier.prepare : bf16 ? tier.prepare_bf16 : tier.prepare_int16)(query);
    rows.push_back(query.prepared);
    const std::uint32_t behind = shape.queries - 1 - i;
    seen.push_back(behind < shape.positions ? shape.positions - behind : 0);
    first.push_back(seen.back() > shape.window ? seen.back() - shape.window : 0);
  }
  Fenced<const float*> queries(rows, side);
  Fenced<std::uint32_t> begins(first, side), ends(seen, side);
  Fenced<float> slopes(numbers(shape.queries), side);
  Fenced<Pos> query_positions(shape.queries, side), key_positions(kPartitionPositions, side);
  AttentionScratch& scratch = used_scratch(side);
  Fenced<float> most(shape.queries, side), sum(shape.queries, side), out(shape.queries * stride, side);
  task.queries = queries.data();
  task.begins = begins.data();
  task.ends = ends.data();
  task.v_view_of_k = shape.view;
  if (shape.shaped) {
    task.softcap = 3.0F;
    task.slopes = slopes.data();
    task.query_positions = query_positions.data();
    task.key_positions = key_positions.data();
  }
  task.count = shape.queries;
  task.pieces = pieces;
  task.scale = 0.125F;
  task.result = {most.data(), sum.data(), out.data(), stride};
  if (shape.converted && tier.convert_int16 != nullptr) task.converted = tier.convert_int16(task, scratch);
  (exact ? tier.score : bf16 ? tier.score_bf16 : tier.score_int16)(task, scratch);
  (exact ? tier.weigh : bf16 ? tier.weigh_bf16 : tier.weigh_int16)(task, scratch);
  Fenced<float> done(std::size_t{shape.queries} * shape.v_dim, side);
  Fenced<float> sink(1, side);
  tier.merge(task.result, task.result, shape.queries, static_cast<std::uint32_t>(stride));
  for (std::uint32_t i = 0; i < shape.queries; ++i) {
    if (seen[i] == 0) continue;
    tier.normalize(task.result, i, shape.v_dim, shape.shaped ? sink.data() : nullptr,
                   done.data() + std::size_t{i} * shape.v_dim);
  }
  return done.values();
}

}  // namespace

TEST(linear_layers_stay_inside) {
  for (const DTypeTraits& t : all_dtypes())
    for (const std::uint32_t channels : {1U, 15U, 16U, 17U, 63U, 65U, 100U})
      for (const std::uint32_t cols : {1U, 7U, 32U, 33U, 64U, 96U, 160U, 256U, 512U}) {
        const DType type = t.type;
        if (cols % block_of(type) != 0 || (cols > 160 && !is_k_type(type))) continue;
        for (const std::uint32_t rows : {1U, 2U, 3U, 5U, 7U, 9U, 17U, 63U}) {
          const LinearShape shape{type, channels, cols, rows};
          on_every_side([&](const Kernels& tier, Side side) { return run_linear(tier, shape, side); });
          if (!has_int8_form(type)) continue;
          on_every_side([&](const Kernels& tier, Side side) { return run_linear_int8(tier, shape, side); });
        }
      }
}

TEST(attention_with_features_stays_inside) {
  for (const DType type : {DType::f32, DType::bf16, DType::q4_0})
    for (const bool view : {false, true})
      for (const std::uint32_t window : {1U, 7U, 200U})
        for (const std::uint32_t first_cell : {0U, 37U})
          for (const std::uint32_t queries : {1U, 5U, 64U})
            for (const Precision precision : {Precision::exact, Precision::fast})
              on_every_side([&](const Kernels& tier, Side side) {
                return run_attend(
                    tier, {type, type, 576, 352, queries, 256, first_cell, window, true, view, precision},
                    side);
              });
}

TEST(attention_stays_inside) {
  std::vector<std::pair<DType, DType>> types;
  for (const DTypeTraits& t : all_dtypes())
    if (t.for_kv) types.insert(types.end(), {{t.type, DType::f16}, {DType::f32, t.type}});
  for (const auto& [type_k, type_v] : types)
    for (const std::uint32_t dim : {8U, 24U, 32U, 80U, 96U, 256U}) {
      if (dim % block_of(type_k) != 0 || dim % block_of(type_v) != 0) continue;
      for (const std::uint32_t positions : {1U, 16U, 65U, 250U, 256U})
        for (const std::uint32_t first_cell : {0U, 37U, 63U})
          for (const std::uint32_t queries : {1U, 3U, 64U}) {
            AttendShape shape{type_k, type_v, dim, dim, queries, positions, first_cell};
            for (const Precision precision : {Precision::exact, Precision::fast, Precision::fastest}) {
              shape.precision = precision;
              on_every_side([&](const Kernels& tier, Side side) { return run_attend(tier, shape, side); });
            }
            if (queries != 3) continue;
            on_every_side([&](const Kernels& tier, Side side) {
              AttendShape other = shape;
              other.precision = Precision::fast;
              const std::vector<float> each = run_attend(tier, other, side);
              other.converted = true;
              std::vector<float> once = run_attend(tier, other, side);
              CHECK(std::memcmp(each.data(), once.data(), each.size() * sizeof(float)) == 0);
              return once;
            });
          }
    }
}

TEST(operations_on_rows_stay_inside) {
  for (std::uint32_t n = 1; n <= 70; ++n)
    on_every_side([&](const Kernels& tier, Side side) {
      Fenced<float> x(numbers(n), side), gain(numbers(n), side), out(n, side);
      tier.rms_norm(x.data(), gain.data(), 1e-5F, n, out.data());
      tier.silu_mul(x.data(), gain.data(), n);
      tier.gelu_mul(x.data(), gain.data(), n);
      tier.clamped_silu_mul(x.data(), gain.data(), n);
      tier.softcap(x.data(), 2.0F, n);
      tier.add(out.data(), x.data(), n);
      return out.values();
    });
}

TEST(convolutions_stay_inside) {
  constexpr std::uint32_t kTaps = 4, kRows = 2;
  for (std::uint32_t n = 1; n <= 40; ++n)
    on_every_side([&](const Kernels& tier, Side side) {
      Fenced<float> taps(numbers((n + 15) / 16 * 16 * kTaps), side), bias(numbers(n), side);
      Fenced<float> before(numbers((kTaps - 1) * n), side), after((kTaps - 1) * n, side);
      Fenced<float> in(numbers(kRows * n), side), out(kRows * n, side);
      tier.convolve({.taps = taps.data(),
                     .bias = bias.data(),
                     .tap_count = kTaps,
                     .channels = n,
                     .rows = kRows,
                     .silu = true,
                     .before = before.data(),
                     .after = after.data(),
                     .state_stride = n,
                     .in = in.data(),
                     .in_stride = n,
                     .out = out.data(),
                     .out_stride = n});
      return joined(out.values(), after.values());
    });
}

TEST(scans_stay_inside) {
  constexpr std::uint32_t kRows = 3;
  for (std::uint32_t dim = 1; dim <= 36; ++dim)
    for (const std::uint32_t size : {1U, 7U, 9U})
      on_every_side([&](const Kernels& tier, Side side) {
        Fenced<float> before(numbers(dim * size), side), after(dim * size, side);
        Fenced<float> in(numbers(kRows * (dim + 2 * size)), side), out(kRows * dim, side);
        Fenced<float> dt(numbers(kRows), side), decay(numbers(kRows), side);
        tier.scan({.head_dim = dim,
                   .state_size = size,
                   .rows = kRows,
                   .before = before.data(),
                   .after = after.data(),
                   .x = in.data(),
                   .b = in.data() + dim,
                   .c = in.data() + dim + size,
                   .in_stride = dim + 2 * size,
                   .dt = dt.data(),
                   .decay = decay.data(),
                   .d = 0.5F,
                   .out = out.data(),
                   .out_stride = dim});
        return joined(out.values(), after.values());
      });
}

TEST(panels_are_packed_and_unpacked_inside) {
  for (const DTypeTraits& t : all_dtypes())
    for (const std::uint32_t cols : {1U, 5U, 32U, 96U, 256U, 512U}) {
      const DType type = t.type;
      if (cols % block_of(type) != 0) continue;
      for (const std::uint32_t rows : {1U, 7U, 16U})
        for (const Side side : kSides) {
          const std::vector<std::byte> bytes = encoded(type, rows, cols);
          const std::size_t stride = row_bytes(type, cols);
          Fenced<std::byte> source(bytes, side), panel(panel_layout(type, cols).bytes, side);
          pack_panel(type, rows, cols, source.data(), panel.data());
          Fenced<float> lane(cols, side);
          unpack_lane(type, panel.data(), rows - 1, {lane.data(), cols});
          std::vector<float> expected(cols);
          decode_row(type, std::span(bytes).subspan((rows - 1) * stride, stride), expected);
          CHECK(lane.values() == expected);
        }
    }
}
