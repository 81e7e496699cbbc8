#include <algorithm>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

using cpu::LinearCall;
using cpu::refuse;

LinearCall checked_call(const cpu::State& state, std::span<const WeightId> weights, Rows in,
                        std::span<const Rows> outs, std::span<const std::uint32_t> precise) {
  if (weights.empty() || weights.size() > Backend::kMaxLinears || weights.size() != outs.size())
    refuse("linear", std::to_string(weights.size()) + " weights and " + std::to_string(outs.size()) +
                         " outputs; needed are as many of each, 1 to " +
                         std::to_string(Backend::kMaxLinears));
  LinearCall call;
  call.rows.in = state.view("linear", "in", in);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const cpu::Weight& weight = state.weight("linear", weights[i]);
    const cpu::RowView out = state.view("linear", "out", outs[i]);
    cpu::check_width("linear", "in", call.rows.in, weight.cols);
    cpu::check_width("linear", "out", out, weight.rows);
    cpu::check_count("linear", "out", out, call.rows.in.count);
    cpu::check_apart("linear", in, outs[i], false);
    for (std::size_t j = 0; j < i; ++j) cpu::check_apart("linear", outs[j], outs[i], false);
    call.add(weight, out);
  }
  for (const std::uint32_t row : precise)
    if (row >= in.count)
      refuse("linear",
             "row " + std::to_string(row) + " of " + std::to_string(in.count) + " is to be precise");
  call.precise.assign(precise.begin(), precise.end());
  return call;
}

// Joins the program: each task takes its rows through all weights.
void defer(cpu::State& state, LinearCall call, Rows in, std::span<const Rows> outs) {
  const std::span<const Rows> source(&in, 1);
  if (!state.program.takes({source, outs})) state.run_program();
  for (cpu::LinearWorker& worker : state.linear_workers) worker.reserve(call, cpu::RowProgram::kMostRows);
  const LinearCall* const kept = &state.linear_calls.emplace_back(std::move(call));
  state.program.add({source, outs}, in.count,
                    [kept, state = &state](cpu::RowRange range, std::uint32_t worker) {
                      const cpu::LinearPlace place(*state->kernels, nullptr, state->linear_workers[worker]);
                      place.run(*kept, range);
                    });
}

}  // namespace

void Backend::linear(WeightId weight, Rows in, Rows out) { linear({&weight, 1}, in, {&out, 1}); }

void Backend::linear(std::span<const WeightId> weights, Rows in, std::span<const Rows> outs,
                     std::span<const std::uint32_t> precise) {
  const auto locked = impl_->enter_rows();
  LinearCall call = checked_call(*impl_, weights, in, outs, precise);
  if (cpu::RowProgram::splits_linear(in.count, impl_->threads->threads()))
    return defer(*impl_, std::move(call), in, outs);
  impl_->run_program();
  cpu::LinearWorker& worker = impl_->linear_workers.front();
  worker.reserve(call, std::min(in.count, cpu::kLinearChunk));
  cpu::LinearPlace(*impl_->kernels, &*impl_->threads, worker).run(call, {0, in.count});
}

}  // namespace pykv
