// Operations on rows wait for each other's results, not for each other: whatever is asked for, in
// any order, gives what one operation at a time gives. Run under both sanitizers too.
#include <functional>
#include <random>
#include <vector>

#include "backend_cpu/row_program.h"
#include "check.h"
#include "pykv/backend.h"
#include "pykv/quant.h"

using namespace pykv;

namespace {

constexpr std::uint32_t kWidth = 64, kKeys = 2 * 32;

std::vector<float> numbers(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

LayerTable one_layer() {
  LayerSpec spec;
  spec.kv_heads = 2;
  spec.k_dim = spec.v_dim = 32;
  return {spec};
}

struct World {
  Backend backend;
  std::uint32_t rows;
  bool one_at_a_time;
  BufferId a, b, c;
  WeightId square, gain;
  PoolId pool;

  World(std::uint32_t threads, std::uint32_t count, bool alone)
      : backend({.threads = threads, .isa = {}}), rows(count), one_at_a_time(alone) {
    for (BufferId* buffer : {&a, &b, &c}) *buffer = backend.create_buffer(rows + 1, kWidth);
    const std::vector<float> w = numbers(kWidth * kWidth, 1), g = numbers(kWidth, 2);
    std::vector<std::byte> stored(row_bytes(DType::q8_0, w.size()));
    encode_row(DType::q8_0, w, stored);
    square = backend.create_weight(DType::q8_0, kWidth, kWidth, stored);
    gain = backend.create_weight(DType::f32, 1, kWidth, std::as_bytes(std::span(g)));
    pool = backend.create_pool(BlockLayout(one_layer(), 0, DType::f16, DType::f16), 8);
    const std::vector<BlockIndex> blocks{0, 1, 2, 3, 4, 5, 6, 7};
    backend.commit_blocks(pool, blocks);
    backend.upload({a, 0, rows + 1, kWidth}, numbers(std::size_t{rows + 1} * kWidth, 3));
    backend.upload({c, 0, rows + 1, kWidth}, numbers(std::size_t{rows + 1} * kWidth, 4));
  }

  Rows of(BufferId buffer, std::uint32_t first = 0) const { return {buffer, first, rows, kWidth}; }
  void done() {
    if (one_at_a_time) backend.synchronize();
  }
  std::vector<float> all(BufferId buffer) {
    std::vector<float> values(std::size_t{rows + 1} * kWidth);
    backend.download({buffer, 0, rows + 1, kWidth}, values);
    return values;
  }
};

// The results of `work`, asked for in one go and operation by operation, on 1 to 5 threads.
void check_same(std::uint32_t rows, const std::function<std::vector<float>(World&)>& work) {
  World reference(1, rows, true);
  const std::vector<float> expected = work(reference);
  for (const std::uint32_t threads : {1U, 2U, 3U, 5U}) {
    World world(threads, rows, false);
    CHECK(work(world) == expected);
  }
}

void layer(World& w) {
  w.backend.rms_norm(w.of(w.a), w.gain, 1e-5F, w.of(w.b));
  w.done();
  w.backend.linear(w.square, w.of(w.b), w.of(w.c));
  w.done();
  w.backend.silu_mul(w.of(w.c), w.of(w.b));
  w.done();
  w.backend.add(w.of(w.a), w.of(w.c));
  w.done();
}

constexpr std::uint32_t kCounts[] = {1, 2, 15, 33, 64, 96, 160, 161, 400};

}  // namespace

TEST(chains_give_what_single_operations_give) {
  for (const std::uint32_t rows : kCounts)
    check_same(rows, [](World& w) {
      for (int i = 0; i < 3; ++i) layer(w);
      return w.all(w.a);
    });
}

// Row i of what is read is row i + 1 of what was written.
TEST(operations_on_shifted_rows_wait) {
  for (const std::uint32_t rows : kCounts)
    check_same(rows, [](World& w) {
      w.backend.add(w.of(w.a, 1), w.of(w.c));
      w.done();
      w.backend.add(w.of(w.a), w.of(w.c));  // rows of `a` that the operation before is writing
      w.done();
      w.backend.add(w.of(w.b), w.of(w.a, 1));
      w.done();
      w.backend.scale({w.b, 0, w.rows / 2, kWidth}, 2.0F);
      w.done();
      return w.all(w.b);
    });
}

TEST(precise_rows_are_where_the_caller_said) {
  for (const std::uint32_t rows : {1U, 40U, 200U})
    check_same(rows, [](World& w) {
      std::vector<std::uint32_t> precise;
      for (std::uint32_t i = 0; i < w.rows; i += 3) precise.push_back(w.rows - 1 - i);
      const WeightId weights[] = {w.square, w.square};
      const Rows outs[] = {w.of(w.b), w.of(w.c)};
      w.backend.linear(weights, w.of(w.a), outs, precise);
      std::fill(precise.begin(), precise.end(), 0U);  // theirs again
      std::vector<float> result = w.all(w.b), other = w.all(w.c);
      result.resize(std::size_t{w.rows} * kWidth);
      other.resize(result.size());
      CHECK(result == other);
      return result;
    });
}

// What was asked for first is done first, whatever follows.
TEST(spans_and_buffers_last_for_the_call_alone) {
  for (const std::uint32_t rows : kCounts)
    check_same(rows, [](World& w) {
      layer(w);
      std::vector<Pos> positions(w.rows);
      for (std::uint32_t i = 0; i < w.rows; ++i) positions[i] = static_cast<Pos>(7 * i);
      RopeParams rope{.dims = 32};
      for (const float base : {1e4F, 1e5F, 1e6F, 1e4F}) {  // more tables than are kept
        rope.base = base;
        w.backend.rope(w.of(w.a), 2, rope, positions);
        w.done();
      }
      std::fill(positions.begin(), positions.end(), 0);
      std::vector<CellIndex> cells(w.rows);
      for (std::uint32_t i = 0; i < w.rows; ++i) cells[i] = (i * 5) % 512;
      w.backend.write_kv(w.pool, 0, {w.a, 0, w.rows, kKeys}, {w.b, 0, w.rows, kKeys}, cells);
      const std::vector<CellIndex> written = cells;
      std::fill(cells.begin(), cells.end(), 0U);
      w.backend.fill(w.of(w.b), 1.0F);  // after they were written
      w.backend.destroy_buffer(w.a);
      std::vector<float> k(std::size_t{w.rows} * kKeys), v(k.size());
      w.backend.read_kv(w.pool, 0, written, k, v);
      k.insert(k.end(), v.begin(), v.end());
      return k;
    });
}

TEST(tasks_cover_all_rows_once_and_are_alike) {
  for (const std::uint32_t threads : {1U, 2U, 3U, 8U}) {
    cpu::ThreadPool pool(threads);
    for (std::uint32_t rows = 1; rows < 700; rows += 13) {
      cpu::RowProgram program;
      const Rows touched{BufferId{1}, 0, rows, kWidth};
      std::vector<std::uint32_t> runs(rows);  // plain: each is written by one task
      std::uint32_t* const to = runs.data();
      program.add({{&touched, 1}}, 8, [to](cpu::RowRange range, std::uint32_t) {
        CHECK(range.begin < range.end && range.end - range.begin <= cpu::RowProgram::kMostRows);
        for (std::uint32_t i = range.begin; i < range.end; ++i) ++to[i];
      });
      program.run(pool);
      CHECK(program.empty());
      for (const std::uint32_t n : runs) CHECK(n == 1);
    }
  }
}
