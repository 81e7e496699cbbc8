// Floor 2. A call of linear(): several weights on the same rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend_cpu/mapped_memory.h"
#include "backend_cpu/row_program.h"
#include "backend_cpu/rows.h"
#include "backend_cpu/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/panel.h"
#include "pykv/backend.h"

namespace pykv::cpu {

struct Weight {
  DType type = DType::f32;
  bool int8 = false;  // multiplied with 8-bit activations
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  kernels::PanelLayout layout;
  std::byte* panels = nullptr;  // nullptr if rows == 1
  std::vector<float> gain;      // the only row, decoded, if rows == 1
};

// One matrix of a call.
struct LinearPart {
  const Weight* weight = nullptr;
  RowView out;
  DType type = DType::f32;  // of the panels
  const std::byte* panels = nullptr;
  kernels::PanelLayout layout;
};

// Some rows through all matrices.
struct LinearRows {
  RowView in;
  std::array<LinearPart, Backend::kMaxLinears> parts;
  std::size_t count = 0;

  std::span<const LinearPart> all() const { return std::span(parts).first(count); }
  LinearRows some(RowRange range) const;
};

struct LinearCall {
  LinearRows rows;
  std::vector<std::uint32_t> precise;          // rows that are rounded to 16 bits
  std::vector<std::vector<std::byte>> panels;  // of weights that are kept as vectors

  bool int8() const;
  void add(const Weight& weight, const RowView& out);
};

// What a thread needs for it.
struct LinearWorker {
  MappedMemory activations;  // as 8-bit integers
  std::vector<float> rests;  // what these left of precise rows, and its outputs

  // Room for so many rows of a call; throws OutOfMemory.
  void reserve(const LinearCall& call, std::uint32_t rows);
};

// Where a call runs: on the threads of a pool, or on the calling thread alone.
class LinearPlace {
 public:
  LinearPlace(const kernels::Kernels& kernels, ThreadPool* threads, LinearWorker& worker)
      : kernels_(kernels), threads_(threads), worker_(worker) {}

  // Rows of a call; the worker has reserved room for as many, or for kLinearChunk. Bits do not
  // depend on the place, nor on the range.
  void run(const LinearCall& call, RowRange range) const;

 private:
  struct Chunk;
  struct Cut;
  template <class Body>
  void for_tasks(std::uint32_t tasks, const Body& body) const;
  void multiply(const LinearRows& rows) const;
  void quantize(const RowView& in, const Chunk& chunk) const;
  void run_task(const LinearPart& part, const Cut& cut, const Chunk& chunk, const RowView& in,
                std::uint32_t index) const;
  void subtract_rounded(const float* x, std::uint32_t cols, float* rest) const;
  void add_rest(const LinearRows& rows, std::span<const std::uint32_t> precise) const;

  const kernels::Kernels& kernels_;
  ThreadPool* threads_;
  LinearWorker& worker_;
};

// Rows that are multiplied in one go: bounds the memory of their 8-bit form.
inline constexpr std::uint32_t kLinearChunk = 512;

}  // namespace pykv::cpu
