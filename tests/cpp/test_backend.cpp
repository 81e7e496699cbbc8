// The thread pool, mapped memory and the parts of Backend that Python does not reach:
// buffers, aliases, many threads. Run under ThreadSanitizer and AddressSanitizer too.
#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include "backend_cpu/mapped_memory.h"
#include "backend_cpu/thread_pool.h"
#include "check.h"
#include "pykv/backend.h"
#include "pykv/errors.h"
#include "pykv/quant.h"

using namespace pykv;

namespace {

std::vector<float> ramp(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 13) - 6.0F;
  return values;
}

WeightId f32_weight(Backend& backend, std::uint32_t rows, std::uint32_t cols) {
  const std::vector<float> values = ramp(std::size_t{rows} * cols);
  return backend.create_weight(DType::f32, rows, cols, std::as_bytes(std::span(values)));
}

LayerTable one_layer() {
  LayerSpec spec;
  spec.kv_heads = 2;
  spec.k_dim = 32;
  spec.v_dim = 32;
  return {spec};
}

}  // namespace

TEST(every_task_runs_once_in_every_loop) {
  cpu::ThreadPool pool(3);
  for (std::uint32_t loop = 0; loop < 3000; ++loop) {
    const std::uint32_t tasks = loop % 17;
    std::vector<std::uint32_t> runs(tasks);  // plain: each is written by one task
    pool.run(tasks, [&](std::uint32_t task, std::uint32_t worker) { runs[task] += worker < 3 ? 1U : 100U; });
    for (const std::uint32_t n : runs) CHECK(n == 1);
  }
}

TEST(loops_after_a_rest_wake_the_workers) {
  cpu::ThreadPool pool(4);
  for (int loop = 0; loop < 20; ++loop) {
    while (pool.sleeping() < 3) std::this_thread::yield();
    std::atomic<std::uint32_t> sum = 0;
    pool.run(64, [&](std::uint32_t task, std::uint32_t) { sum += task; });
    CHECK(sum == 64 * 63 / 2);
  }
}

TEST(results_of_one_loop_are_visible_to_the_next) {
  cpu::ThreadPool pool(4);
  std::vector<std::uint64_t> values(256, 1);
  std::vector<std::uint64_t> next(256);
  for (int loop = 0; loop < 40; ++loop) {
    pool.run(256, [&](std::uint32_t task, std::uint32_t) { next[task] = values[task] + values[255 - task]; });
    values.swap(next);
  }
  for (const std::uint64_t value : values) CHECK(value == std::uint64_t{1} << 40);
}

TEST(pools_start_and_stop_at_any_size) {
  for (std::uint32_t threads = 1; threads < 12; ++threads) {
    cpu::ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
  }
  CHECK(cpu::usable_cores() >= 1);
}

TEST(mapped_memory_gives_zeros_after_each_commit) {
  cpu::MappedMemory memory = cpu::MappedMemory::reserve(1 << 20);
  for (int round = 0; round < 2; ++round) {
    CHECK(memory.commit(4096, 8192));
    CHECK(memory.data()[4096] == std::byte{0} && memory.data()[4096 + 8191] == std::byte{0});
    memory.data()[4096] = std::byte{1};
    memory.release(4096, 8192);
  }
  CHECK(cpu::MappedMemory::reserve(std::numeric_limits<std::size_t>::max() / 2).data() == nullptr);
}

TEST(buffers_are_zero_bounded_and_give_back_what_was_put_in) {
  Backend backend({.threads = 1, .isa = ""});
  const BufferId buffer = backend.create_buffer(4, 6);
  std::vector<float> out(24, 1.0F);
  backend.download({buffer, 0, 4, 6}, out);
  CHECK(out == std::vector<float>(24));
  const std::vector<float> in = ramp(6);
  backend.upload({buffer, 1, 2, 3}, in);  // the first three elements of two rows
  std::vector<float> row(6);
  backend.download({buffer, 2, 1, 6}, row);
  CHECK(row == (std::vector<float>{in[3], in[4], in[5], 0, 0, 0}));

  CHECK_THROWS(InvalidArgument, backend.download({buffer, 3, 2, 6}, std::span(out).first(12)));
  CHECK_THROWS(InvalidArgument, backend.download({buffer, 0xffffffff, 1, 6}, row));
  CHECK_THROWS(InvalidArgument, backend.download({buffer, 0, 1, 7}, std::span(out).first(7)));
  CHECK_THROWS(InvalidArgument, backend.download({buffer, 0, 1, 0}, {}));
  CHECK_THROWS(InvalidArgument, backend.download({buffer, 0, 2, 6}, row));
  CHECK_THROWS(InvalidArgument, backend.upload({buffer, 0, 1, 6}, std::span(in).first(5)));
  CHECK_THROWS(InvalidArgument, backend.create_buffer(0, 1));
  CHECK_THROWS(InvalidArgument, backend.create_buffer(1, 0));
  CHECK_THROWS(OutOfMemory, backend.create_buffer(0xffffffff, 0xffffffff));
  backend.destroy_buffer(buffer);
  CHECK_THROWS(InvalidArgument, backend.destroy_buffer(buffer));
  CHECK_THROWS(InvalidArgument, backend.download({buffer, 0, 1, 6}, row));
}

TEST(overlapping_rows_are_refused) {
  Backend backend({.threads = 1, .isa = ""});
  const BufferId buffer = backend.create_buffer(8, 16);
  const WeightId square = f32_weight(backend, 16, 16);
  const WeightId gain = f32_weight(backend, 1, 16);
  const Rows low{buffer, 0, 4, 16};
  const Rows middle{buffer, 3, 4, 16};
  const Rows high{buffer, 4, 4, 16};
  CHECK_THROWS(InvalidArgument, backend.linear(square, low, low));
  CHECK_THROWS(InvalidArgument, backend.linear(square, low, middle));
  CHECK_THROWS(InvalidArgument, backend.rms_norm(middle, gain, 1e-5F, low));
  CHECK_THROWS(InvalidArgument, backend.silu_mul(middle, low));
  CHECK_THROWS(InvalidArgument, backend.add(low, middle));
  const std::vector<std::uint32_t> rows{0, 1, 2, 3};
  CHECK_THROWS(InvalidArgument, backend.gather(low, rows, low));
  backend.linear(square, low, high);
  backend.rms_norm(low, gain, 1e-5F, low);
  backend.add(low, low);
  backend.gather(low, rows, high);
}

TEST(no_rows_are_no_work) {
  Backend backend({.threads = 2, .isa = ""});
  const BufferId a = backend.create_buffer(1, 16);
  const BufferId b = backend.create_buffer(1, 16);
  const Rows none_a{a, 1, 0, 16};
  const Rows none_b{b, 0, 0, 16};
  backend.linear(f32_weight(backend, 16, 16), none_a, none_b);
  backend.rms_norm(none_a, f32_weight(backend, 1, 16), 1e-5F, none_b);
  backend.add(none_a, none_b);
  backend.silu_mul(none_a, none_b);
  backend.gather(none_a, {}, none_b);
  backend.embed(f32_weight(backend, 3, 16), {}, none_a);
  backend.rope(none_a, 1, {.dims = 16}, {});
}

// Every operation with several threads, on every tier; the sanitizers do the checking.
TEST(all_operations_on_many_threads) {
  for (const std::string& isa : Backend::available_isas()) {
    Backend backend({.threads = 4, .isa = isa});
    constexpr std::uint32_t kTokens = 600;
    const BufferId q = backend.create_buffer(kTokens, 128);
    const BufferId out = backend.create_buffer(kTokens, 128);
    const BufferId kv = backend.create_buffer(kTokens, 64);
    backend.upload({q, 0, kTokens, 128}, ramp(kTokens * 128));
    backend.upload({kv, 0, kTokens, 64}, ramp(kTokens * 64));
    for (const DType type : {DType::f32, DType::f16, DType::q8_0}) {
      const BlockLayout layout(one_layer(), 0, type, type);
      const PoolId pool = backend.create_pool(layout, 16);
      const std::vector<BlockIndex> blocks{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15};
      backend.commit_blocks(pool, blocks);
      std::vector<CellIndex> cells(kTokens);
      for (std::uint32_t i = 0; i < kTokens; ++i) cells[i] = i + 3;
      backend.write_kv(pool, 0, {kv, 0, kTokens, 64}, {kv, 0, kTokens, 64}, cells);
      AttentionBatch batch;
      batch.segments = {{0, 3, kTokens, 0, 0}};
      for (const std::uint32_t rows : {1U, 33U, kTokens}) {
        batch.groups = {{0, rows, static_cast<Pos>(kTokens - rows), 0, 1, kTokens - rows}};
        backend.attend(pool, 0, {q, 0, rows, 128}, {out, 0, rows, 128}, batch, {4, 0.125F});
        backend.set_threads(rows % 5 + 2);
      }
      backend.release_blocks(pool, blocks);
      backend.destroy_pool(pool);
    }
    backend.linear(f32_weight(backend, 128, 128), {q, 0, kTokens, 128}, {out, 0, kTokens, 128});
    backend.rms_norm({out, 0, kTokens, 128}, f32_weight(backend, 1, 128), 1e-5F, {q, 0, kTokens, 128});
    backend.silu_mul({out, 0, kTokens, 128}, {q, 0, kTokens, 128});
    backend.add({out, 0, kTokens, 128}, {q, 0, kTokens, 128});
    std::vector<float> values(kTokens * 128);
    backend.download({out, 0, kTokens, 128}, values);
    CHECK(values[0] == values[0]);
  }
}
