// Floor 2. State of the CPU backend, shared by its sources: backend.cpp (construction,
// buffers), weights.cpp, linear.cpp, row_ops.cpp, row_program.cpp, pools.cpp, states.cpp, recurrent.cpp,
// attention.cpp.
#pragma once

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend_cpu/attention_cut.h"
#include "backend_cpu/attention_worker.h"
#include "backend_cpu/linear_call.h"
#include "backend_cpu/mapped_memory.h"
#include "backend_cpu/rotary.h"
#include "backend_cpu/row_program.h"
#include "backend_cpu/rows.h"
#include "backend_cpu/thread_pool.h"
#include "core/birthplace.h"
#include "kernels/kernels.h"
#include "pykv/backend.h"
#include "pykv/errors.h"

namespace pykv::cpu {

inline constexpr std::uint32_t kMaxThreads = 1024;

struct Buffer {
  MappedMemory memory;
  std::uint32_t rows = 0;
  std::uint32_t width = 0;  // elements from row to row
  float* data() const { return reinterpret_cast<float*>(memory.data()); }
};

struct Pool {
  BlockLayout layout;
  std::uint32_t blocks = 0;
  MappedMemory memory;
  std::vector<bool> committed;

  std::byte* block(std::uint32_t index) const { return memory.data() + index * layout.block_bytes(); }
};

struct States {
  std::uint64_t slot_bytes = 0;
  MappedMemory memory;
  std::vector<bool> committed;

  float* slot(StateSlot index) const {
    return reinterpret_cast<float*>(memory.data() + index.value * slot_bytes);
  }
};

[[noreturn]] inline void refuse(const char* method, const std::string& what) {
  throw InvalidArgument("[Backend." + std::string(method) + "] " + what);
}

struct State {
  const Birthplace birthplace;
  mutable std::mutex calls;  // held by the call that is inside
  const kernels::Kernels* kernels = nullptr;
  std::string isa;
  std::optional<ThreadPool> threads;
  std::vector<std::unique_ptr<AttentionWorker>> attention_workers;  // one per thread
  std::vector<LinearWorker> linear_workers;                         // likewise
  AttentionCut attention_cut;
  Rotations rotations;
  std::vector<CellIndex> sorted_cells;
  std::vector<float> prepared_queries;
  std::vector<float> partials;  // of visits to partitions
  std::map<std::uint32_t, Buffer> buffers;
  std::map<std::uint32_t, Weight> weights;
  std::map<std::uint32_t, Pool> pools;
  std::map<std::uint32_t, States> states;
  std::vector<float> scan_factors;  // dt, then decay: [heads][rows] each
  std::uint32_t last_id = 0;        // ids of all kinds; never used again
  WeightMemory weight_memory;
  std::size_t weight_bytes = 0;
  RopeTables ropes;
  RowProgram program;                   // what was asked for and has not run yet
  std::deque<LinearCall> linear_calls;  // of the program

  // The first thing of every public call: waits for the one that is inside, then for what was
  // asked for before.
  [[nodiscard]] std::unique_lock<std::mutex> enter() {
    std::unique_lock lock = enter_rows();
    run_program();
    return lock;
  }
  // The same of operations on rows, which join the program.
  [[nodiscard]] std::unique_lock<std::mutex> enter_rows() const {
    if (birthplace.left())
      throw Unsupported(
          "[Backend] this backend belongs to another process, of which this is a fork; make a new one here, "
          "or start children with 'spawn'");
    return std::unique_lock(calls);
  }
  void run_program() {
    program.run(*threads);
    linear_calls.clear();
  }
  // Adds body(i) for each row i of `rows`, all that it touches, the first of which it writes.
  template <class Body>
  void defer(std::initializer_list<Rows> rows, Body body) {
    defer_some(rows, rows_per_task(rows.begin()->width), [body](RowRange range, std::uint32_t) {
      for (std::uint32_t i = range.begin; i < range.end; ++i) body(i);
    });
  }
  template <class Body>
  void defer_some(std::initializer_list<Rows> rows, std::uint32_t step, const Body& body) {
    const std::span<const Rows> all(rows.begin(), rows.size());
    if (!program.takes({all})) run_program();
    program.add({all}, step, body);
  }
  // About 32 KiB of float32.
  static std::uint32_t rows_per_task(std::uint32_t width) { return std::max(1U, 8192U / width); }

  // `method` is the public one, for messages.
  void start_threads(const char* method, std::uint32_t count);
  std::uint32_t next_id(const char* method);
  RowView view(const char* method, const char* name, Rows rows) const;
  const Weight& weight(const char* method, WeightId id) const;
  Pool& pool(const char* method, PoolId id);
  const States& states_of(const char* method, StatesId id) const;
  const BlockLayout::LayerPlace& layer(const char* method, const Pool& pool, std::uint32_t layer) const;
};

void check_width(const char* method, const char* name, const RowView& view, std::uint64_t expected);
void check_count(const char* method, const char* name, const RowView& view, std::uint64_t expected);
// Refuses rows that share memory, except, if `same_is_fine`, exactly the same ones.
void check_apart(const char* method, Rows a, Rows b, bool same_is_fine);
void check_cell(const char* method, const Pool& pool, CellIndex cell);
void check_slot(const char* method, const States& states, StateSlot slot);
// Elements [offset, offset + elements) lie in a slot.
void check_part(const char* method, const States& states, std::uint32_t offset, std::uint64_t elements);

}  // namespace pykv::cpu

struct pykv::Backend::Impl : pykv::cpu::State {};
