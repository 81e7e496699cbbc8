// Floor 2. Operations on rows that were asked for and have not run yet.
//
// Row i of each depends on row i of those before it and on nothing else that they write. So each
// task takes some rows through all of them: what one operation wrote the next one reads from the
// cache next to the core, and threads wait for each other once, not after every operation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

#include "backend_cpu/thread_pool.h"
#include "pykv/backend.h"

namespace pykv::cpu {

struct RowRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

class RowProgram {
 public:
  static constexpr std::uint32_t kMostRows = 64;  // of a task: their activations stay in its cache
  // A layer has fewer. Whoever only writes, and reads nothing, must not pile them up.
  static constexpr std::size_t kMostOperations = 64;

  // Whether each thread gets so many rows that it should take them through everything, linear
  // layers too. With fewer those are cut by outputs, since each task reads all weights.
  static bool splits_linear(std::uint32_t rows, std::uint32_t threads);

  bool empty() const { return operations_.empty(); }

  // Whether an operation that reads or writes `rows` can be added: there is room, they are as many
  // as those before it, and of every buffer the same ones.
  bool takes(std::initializer_list<std::span<const Rows>> rows) const;

  // body(RowRange, worker), called for parts of [0, count), at the same time. `rows`: all that it
  // reads or writes. `step`: as many rows as make a task, where there are few.
  template <class Body>
  void add(std::initializer_list<std::span<const Rows>> rows, std::uint32_t step, const Body& body) {
    static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= kCaptured);
    Operation& operation = begin(rows, step);
    std::memcpy(operation.captured.data(), &body, sizeof body);
    operation.invoke = [](const void* captured, RowRange range, std::uint32_t worker) {
      (*static_cast<const Body*>(captured))(range, worker);
    };
  }

  // Whether `cells` can be kept: others may hold one of them in another row, and rows have no order.
  bool can_keep(std::span<const CellIndex> cells) const;
  // A copy of `cells` that lasts until the program has run.
  std::span<const CellIndex> keep(std::span<const CellIndex> cells);

  void run(ThreadPool& threads);

 private:
  static constexpr std::size_t kCaptured = 160;
  struct Operation {
    alignas(16) std::array<std::byte, kCaptured> captured;
    void (*invoke)(const void* captured, RowRange range, std::uint32_t worker) = nullptr;
  };

  Operation& begin(std::initializer_list<std::span<const Rows>> rows, std::uint32_t step);
  std::uint32_t rows_of_task(std::uint32_t threads) const;

  std::vector<Operation> operations_;
  std::vector<Rows> touched_;    // one of each buffer
  std::vector<CellIndex> kept_;  // empty: none
  std::uint32_t count_ = 0;
  std::uint32_t step_ = 0;
};

}  // namespace pykv::cpu
