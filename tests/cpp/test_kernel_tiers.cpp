// Every tier of this machine against definitions in double, at odd sizes. tests/kernels does it
// in far more detail; this program also runs where there is no Python, as under an emulator of
// another processor.
#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "pykv/backend.h"
#include "pykv/quant.h"

using namespace pykv;

namespace {

constexpr DType kTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,  DType::q4_0,
                            DType::q4_1, DType::q5_0, DType::q5_1, DType::iq4_nl};

// Numbers in [-2, 2), the same everywhere.
struct Numbers {
  std::uint64_t state = 42;
  float next() {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<float>(static_cast<std::int32_t>(state >> 40) - (1 << 23)) * 0x1p-22F;
  }
  std::vector<float> take(std::size_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = next();
    return values;
  }
};

// FNV-1a over the bits of many results.
struct Checksum {
  std::uint64_t value = 0xcbf29ce484222325U;
  void add(std::span<const float> values) {
    for (const std::byte byte : std::as_bytes(values))
      value = (value ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3U;
  }
};

struct Stored {
  std::vector<std::byte> bytes;
  std::vector<float> values;  // what the bytes stand for
};

Stored store(DType type, const std::vector<float>& values, std::size_t cols) {
  const std::size_t rows = values.size() / cols, row = row_bytes(type, cols);
  Stored made{std::vector<std::byte>(rows * row), std::vector<float>(values.size())};
  for (std::size_t r = 0; r < rows; ++r) {
    const std::span bytes = std::span(made.bytes).subspan(r * row, row);
    encode_row(type, std::span(values).subspan(r * cols, cols), bytes);
    decode_row(type, bytes, std::span(made.values).subspan(r * cols, cols));
  }
  return made;
}

std::vector<float> on(Backend& backend, const std::vector<float>& in, std::uint32_t rows, std::uint32_t width,
                      std::uint32_t out_width, auto work) {
  const BufferId from = backend.create_buffer(rows, width), to = backend.create_buffer(rows, out_width);
  backend.upload({from, 0, rows, width}, in);
  work(Rows{from, 0, rows, width}, Rows{to, 0, rows, out_width});
  std::vector<float> out(std::size_t{rows} * out_width);
  backend.download({to, 0, rows, out_width}, out);
  backend.destroy_buffer(from);
  backend.destroy_buffer(to);
  return out;
}

// What rounding an input to a 127th of the largest of its 32 may change.
double rounding_of_inputs(const float* w, const float* x, std::uint32_t cols) {
  double total = 0;
  for (std::uint32_t block = 0; block < cols; block += 32) {
    double peak = 0, weights = 0;
    for (std::uint32_t k = block; k < block + 32; ++k) {
      peak = std::max(peak, std::abs(double{x[k]}));
      weights += std::abs(double{w[k]});
    }
    total += weights * peak / 127 * 0.51;
  }
  return total;
}

void check_linear(Backend& backend, DType type, Precision precision, Numbers& numbers, Checksum& sum) {
  constexpr std::uint32_t kOutputs = 37, kCols = 96;
  const Stored weight = store(type, numbers.take(kOutputs * kCols), kCols);
  const WeightId id = backend.create_weight(type, kOutputs, kCols, weight.bytes, precision);
  for (const std::uint32_t rows : {1U, 2U, 5U, 7U, 18U}) {
    const std::vector<float> x = numbers.take(std::size_t{rows} * kCols);
    const std::vector<float> y =
        on(backend, x, rows, kCols, kOutputs, [&](Rows in, Rows out) { backend.linear(id, in, out); });
    sum.add(y);
    for (std::uint32_t r = 0; r < rows; ++r)
      for (std::uint32_t c = 0; c < kOutputs; ++c) {
        const float *w = &weight.values[c * kCols], *in = &x[r * kCols];
        double expected = 0, size = 0;
        for (std::uint32_t k = 0; k < kCols; ++k) {
          expected += double{w[k]} * in[k];
          size += std::abs(double{w[k]} * in[k]);
        }
        const double allowed =
            size * 4e-6 + (precision == Precision::fast ? rounding_of_inputs(w, in, kCols) : 0);
        CHECK(std::abs(y[r * kOutputs + c] - expected) <= allowed);
      }
  }
}

constexpr std::uint32_t kTokens = 77, kHeads = 4, kDim = 96;

LayerTable layer() {
  LayerSpec spec;
  spec.kv_heads = 2;
  spec.k_dim = spec.v_dim = kDim;
  spec.sinks = true;
  return {spec};
}

// Of query row i (position kTokens - rows + i) and head h, over the stored values.
std::vector<double> expected_attention(const float* q, const std::vector<float>& k,
                                       const std::vector<float>& v, Pos at, std::uint32_t head,
                                       const AttentionParams& params) {
  const std::uint32_t kv_head = head / 2;
  std::vector<double> scores;
  double peak = params.sinks[head];
  const Pos begin = first_visible(at, params.window);
  for (Pos t = begin; t <= at; ++t) {
    double score = 0;
    for (std::uint32_t d = 0; d < kDim; ++d)
      score += double{q[d]} * k[(static_cast<std::size_t>(t) * 2 + kv_head) * kDim + d];
    scores.push_back(params.softcap * std::tanh(score * params.scale / params.softcap));
    peak = std::max(peak, scores.back());
  }
  double total = std::exp(params.sinks[head] - peak);
  std::vector<double> out(kDim);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - peak);
    total += weight;
    for (std::uint32_t d = 0; d < kDim; ++d)
      out[d] += weight * v[((static_cast<std::size_t>(begin) + i) * 2 + kv_head) * kDim + d];
  }
  for (double& value : out) value /= total;
  return out;
}

void check_attention(Backend& backend, DType type, Numbers& numbers, Checksum& sum) {
  const BlockLayout layout(layer(), 0, type, type, false);
  const PoolId pool = backend.create_pool(layout, 2);
  const BlockIndex blocks[] = {BlockIndex(0), BlockIndex(1)};
  backend.commit_blocks(pool, blocks);
  std::vector<CellIndex> cells;
  for (std::uint32_t i = 0; i < kTokens; ++i) cells.push_back(CellIndex(i));

  const std::uint32_t width = 2 * kDim;
  const BufferId k_rows = backend.create_buffer(kTokens, width),
                 v_rows = backend.create_buffer(kTokens, width);
  const Rows k_all{k_rows, 0, kTokens, width}, v_all{v_rows, 0, kTokens, width};
  backend.upload(k_all, numbers.take(std::size_t{kTokens} * width));
  backend.upload(v_all, numbers.take(std::size_t{kTokens} * width));
  backend.write_kv(pool, 0, k_all, v_all, cells);
  std::vector<float> k(std::size_t{kTokens} * width), v(k.size());
  backend.read_kv(pool, 0, cells, k, v);

  const float sinks[kHeads] = {0.5F, -1.0F, 0.0F, 2.0F};
  for (const std::uint32_t rows : {1U, 3U, kTokens})
    for (const std::uint32_t window : {0U, 11U}) {
      AttentionParams params{.heads = kHeads, .scale = 0.1F, .softcap = 5.0F, .sinks = sinks};
      if (window != 0) params.window = {WindowKind::standard, window};
      const auto first = static_cast<Pos>(kTokens - rows);
      AttentionBatch batch;
      batch.segments = {{.first = 0, .cell = CellIndex(0), .length = kTokens}};
      batch.groups = {{.rows = rows,
                       .first_position = first,
                       .segments = 1,
                       .first_slot = static_cast<std::uint32_t>(first)}};
      const std::vector<float> q = numbers.take(std::size_t{rows} * kHeads * kDim);
      const std::vector<float> out =
          on(backend, q, rows, kHeads * kDim, kHeads * kDim,
             [&](Rows in, Rows to) { backend.attend(pool, 0, in, to, batch, params); });
      sum.add(out);
      for (std::uint32_t r = 0; r < rows; ++r)
        for (std::uint32_t h = 0; h < kHeads; ++h) {
          const std::size_t at = (std::size_t{r} * kHeads + h) * kDim;
          const std::vector<double> expected =
              expected_attention(&q[at], k, v, first + static_cast<Pos>(r), h, params);
          for (std::uint32_t d = 0; d < kDim; ++d) CHECK(std::abs(out[at + d] - expected[d]) <= 2e-5);
        }
    }
  backend.destroy_buffer(k_rows);
  backend.destroy_buffer(v_rows);
  backend.destroy_pool(pool);
}

void check_rows(Backend& backend, Numbers& numbers, Checksum& sum) {
  constexpr std::uint32_t kWidth = 45;
  const std::vector<float> x = numbers.take(kWidth), gain = numbers.take(kWidth);
  const WeightId weight = backend.create_weight(DType::f32, 1, kWidth, std::as_bytes(std::span(gain)));
  const std::vector<float> normed =
      on(backend, x, 1, kWidth, kWidth, [&](Rows in, Rows out) { backend.rms_norm(in, weight, 1e-5F, out); });
  sum.add(normed);
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  for (std::uint32_t i = 0; i < kWidth; ++i)
    CHECK(std::abs(normed[i] - gain[i] * x[i] / std::sqrt(squares / kWidth + 1e-5)) <= 1e-5);

  const std::vector<float> gated = on(backend, x, 1, kWidth, kWidth, [&](Rows in, Rows out) {
    backend.upload(out, gain);
    backend.silu_mul(out, in);
  });
  sum.add(gated);
  for (std::uint32_t i = 0; i < kWidth; ++i)
    CHECK(std::abs(gated[i] - gain[i] / (1 + std::exp(-double{gain[i]})) * x[i]) <= 1e-5);
}

std::uint64_t check_tier(const std::string& isa) {
  Backend backend({.threads = 2, .isa = isa});
  Numbers numbers;
  Checksum sum;
  for (const DType type : kTypes) check_linear(backend, type, Precision::exact, numbers, sum);
  for (const DType type : {DType::q4_0, DType::q4_1, DType::q8_0})
    check_linear(backend, type, Precision::fast, numbers, sum);
  for (const DType type : kTypes) check_attention(backend, type, numbers, sum);
  check_rows(backend, numbers, sum);
  return sum.value;
}

}  // namespace

TEST(every_tier_computes_what_is_defined) {
  for (const std::string& isa : Backend::available_isas()) {
    const int before = check::failures();
    check_tier(isa);
    std::printf("  %s %s\n", isa.c_str(), check::failures() == before ? "as defined" : "differs");
  }
}

TEST(the_scalar_tier_has_the_same_bits_on_every_processor) {
  const std::uint64_t found = check_tier("scalar");
  std::printf("  checksum %016llx\n", static_cast<unsigned long long>(found));
  CHECK(found == 0x98c0a41cae985ed6U);
}
