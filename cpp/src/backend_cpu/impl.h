// Floor 2. State of the CPU backend, shared by its sources: backend.cpp (construction,
// buffers), weights.cpp, row_ops.cpp, pools.cpp, states.cpp, recurrent.cpp, attention.cpp.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend_cpu/attention_cut.h"
#include "backend_cpu/attention_worker.h"
#include "backend_cpu/mapped_memory.h"
#include "backend_cpu/rotary.h"
#include "backend_cpu/thread_pool.h"
#include "core/birthplace.h"
#include "kernels/kernels.h"
#include "kernels/panel.h"
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

struct Weight {
  DType type = DType::f32;
  bool int8 = false;  // multiplied with 8-bit activations
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  kernels::PanelLayout layout;
  std::byte* panels = nullptr;  // nullptr if rows == 1
  std::vector<float> gain;      // the only row, decoded, if rows == 1
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

constexpr std::uint32_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint32_t>((a + b - 1) / b);
}

// Rows of a buffer after all checks.
struct RowView {
  float* data = nullptr;
  std::size_t stride = 0;
  std::uint32_t count = 0;
  std::uint32_t width = 0;
  float* row(std::size_t i) const { return data + i * stride; }
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
  AttentionCut attention_cut;
  std::vector<float> partials;  // of visits to partitions
  std::map<std::uint32_t, Buffer> buffers;
  std::map<std::uint32_t, Weight> weights;
  std::map<std::uint32_t, Pool> pools;
  std::map<std::uint32_t, States> states;
  std::vector<float> scan_factors;  // dt, then decay: [heads][rows] each
  std::uint32_t last_id = 0;        // ids of all kinds; never used again
  WeightMemory weight_memory;
  std::size_t weight_bytes = 0;
  RopeTable rope;
  MappedMemory activations;  // of the linear layer that runs, as 8-bit integers
  std::vector<float> rests;  // what these left of precise rows, and its outputs

  // The first thing of every public call: waits for the one that is inside.
  [[nodiscard]] std::unique_lock<std::mutex> enter() const {
    if (birthplace.left())
      throw Unsupported(
          "[Backend] this backend belongs to another process, of which this is a fork; make a new one here, "
          "or start children with 'spawn'");
    return std::unique_lock(calls);
  }
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
