#include "backend_cpu/row_program.h"

#include <algorithm>

#include "backend_cpu/rows.h"
#include "kernels/activations.h"

namespace pykv::cpu {
namespace {

constexpr std::uint32_t kPanel = kernels::kActivationRows;
constexpr std::uint32_t kLeastRows = 32;  // below, weights are read too often

}  // namespace

bool RowProgram::splits_linear(std::uint32_t rows, std::uint32_t threads) {
  return rows >= kLeastRows * threads;
}

bool RowProgram::takes(std::initializer_list<std::span<const Rows>> rows) const {
  if (empty()) return true;
  if (operations_.size() >= kMostOperations) return false;
  for (const std::span<const Rows> some : rows)
    for (const Rows& one : some) {
      if (one.count != count_) return false;
      for (const Rows& other : touched_)
        if (one.buffer == other.buffer && one.first != other.first) return false;
    }
  return true;
}

RowProgram::Operation& RowProgram::begin(std::initializer_list<std::span<const Rows>> rows,
                                         std::uint32_t step) {
  if (empty()) {
    touched_.clear();
    count_ = rows.begin()->front().count;
    step_ = step;
  }
  step_ = std::min(step_, step);
  for (const std::span<const Rows> some : rows)
    for (const Rows& one : some) {
      const auto same = [&](const Rows& other) { return other.buffer == one.buffer; };
      if (std::none_of(touched_.begin(), touched_.end(), same)) touched_.push_back(one);
    }
  return operations_.emplace_back();
}

bool RowProgram::can_keep(std::span<const CellIndex> cells) const {
  return kept_.empty() || std::ranges::equal(kept_, cells);
}

std::span<const CellIndex> RowProgram::keep(std::span<const CellIndex> cells) {
  if (kept_.empty()) kept_.assign(cells.begin(), cells.end());
  return kept_;
}

// Tasks of equal size: with few rows about `step_` each, with many whole panels of activations.
std::uint32_t RowProgram::rows_of_task(std::uint32_t threads) const {
  if (!splits_linear(count_, threads)) return ceil_div(count_, ceil_div(count_, step_));
  const std::uint32_t tasks = threads * ceil_div(count_, threads * kMostRows);
  return ceil_div(ceil_div(count_, tasks), kPanel) * kPanel;
}

void RowProgram::run(ThreadPool& threads) {
  if (count_ != 0 && !empty()) {
    const std::uint32_t step = rows_of_task(threads.threads());
    threads.run(ceil_div(count_, step), [&](std::uint32_t task, std::uint32_t worker) {
      const RowRange range{task * step, std::min(count_, (task + 1) * step)};
      for (const Operation& operation : operations_)
        operation.invoke(operation.captured.data(), range, worker);
    });
  }
  operations_.clear();
  kept_.clear();
}

}  // namespace pykv::cpu
