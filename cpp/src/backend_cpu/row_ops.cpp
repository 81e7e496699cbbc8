#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

using cpu::refuse;
using cpu::RowView;

void check_rope(const RowView& x, std::uint32_t heads, const RopeParams& params,
                std::span<const Pos> positions) {
  if (heads == 0 || x.width % heads != 0)
    refuse("rope", std::to_string(heads) + " heads do not divide the width " + std::to_string(x.width));
  if (params.dims == 0) refuse("rope", "dims is 0; leave the call out");
  validate(params, x.width / heads, "[Backend.rope] ");
  cpu::check_count("rope", "x", x, positions.size());
  for (const Pos position : positions)
    if (position < 0) refuse("rope", "position " + std::to_string(position) + " is negative");
}

const cpu::Weight& vector_weight(const cpu::State& state, const char* method, WeightId id) {
  const cpu::Weight& weight = state.weight(method, id);
  if (weight.rows != 1)
    refuse(method, "the weight has " + std::to_string(weight.rows) + " rows, needed is 1");
  return weight;
}

void check_factor(const char* method, const char* name, float value) {
  if (!std::isfinite(value))
    refuse(method, std::string(name) + " " + std::to_string(value) + " must be finite");
}

using GateKernel = void (*)(float* gate, const float* up, std::size_t n);

void gate_rows(cpu::State& state, const char* method, Rows gate, Rows up, GateKernel kernel) {
  const RowView g = state.view(method, "gate", gate);
  const RowView u = state.view(method, "up", up);
  cpu::check_width(method, "up", u, g.width);
  cpu::check_count(method, "up", u, g.count);
  cpu::check_apart(method, gate, up, true);
  state.defer({gate, up}, [=](std::uint32_t i) { kernel(g.row(i), u.row(i), g.width); });
}

}  // namespace

void Backend::rms_norm(Rows in, WeightId gain, float epsilon, Rows out, std::uint32_t parts) {
  const auto call = impl_->enter_rows();
  const RowView x = impl_->view("rms_norm", "in", in);
  const RowView y = impl_->view("rms_norm", "out", out);
  const cpu::Weight& weight = vector_weight(*impl_, "rms_norm", gain);
  if (x.width % weight.cols != 0)
    refuse("rms_norm", "in has width " + std::to_string(x.width) + ", needed is a multiple of the gain's " +
                           std::to_string(weight.cols));
  if (parts != 0 && (weight.cols != x.width || x.width % parts != 0))
    refuse("rms_norm", std::to_string(parts) + " parts of a row of " + std::to_string(x.width) +
                           " with a gain of " + std::to_string(weight.cols) +
                           "; the gain is as long as the row, which the parts divide");
  cpu::check_width("rms_norm", "out", y, x.width);
  cpu::check_count("rms_norm", "out", y, x.count);
  cpu::check_apart("rms_norm", in, out, true);
  if (!(epsilon >= 0) || !std::isfinite(epsilon))
    refuse("rms_norm", "epsilon " + std::to_string(epsilon) + " must be finite and not negative");
  const std::uint32_t group = parts == 0 ? weight.cols : x.width / parts;
  const auto kernel = impl_->kernels->rms_norm;
  const float* const gains = weight.gain.data();
  impl_->defer({out, in}, [=](std::uint32_t i) {
    for (std::uint32_t at = 0; at < x.width; at += group)
      kernel(x.row(i) + at, gains + (parts == 0 ? 0 : at), epsilon, group, y.row(i) + at);
  });
}

void Backend::rope(Rows rows, std::uint32_t heads, const RopeParams& params, std::span<const Pos> positions,
                   float magnitude) {
  const auto call = impl_->enter_rows();
  const RowView x = impl_->view("rope", "x", rows);
  check_rope(x, heads, params, positions);
  check_factor("rope", "magnitude", magnitude);
  const cpu::HeadTurn turn(params);
  const float* table = impl_->ropes.find(params, positions);
  if (table == nullptr) {
    impl_->run_program();  // it may use the one that is overwritten
    table = impl_->ropes.fill(params, positions);
  }
  const std::uint32_t head_dim = x.width / heads;
  impl_->defer({rows}, [=](std::uint32_t i) {
    for (std::uint32_t head = 0; head < heads; ++head) {
      float* const values = x.row(i) + std::size_t{head} * head_dim;
      turn(values, table + std::size_t{i} * turn.dims);
      if (magnitude != 1.0F)
        for (std::uint32_t j = 0; j < turn.dims; ++j) values[turn.offset + j] *= magnitude;
    }
  });
}

void Backend::silu_mul(Rows gate, Rows up) {
  const auto call = impl_->enter_rows();
  gate_rows(*impl_, "silu_mul", gate, up, impl_->kernels->silu_mul);
}

void Backend::gelu_mul(Rows gate, Rows up) {
  const auto call = impl_->enter_rows();
  gate_rows(*impl_, "gelu_mul", gate, up, impl_->kernels->gelu_mul);
}

void Backend::multiply(Rows rows, Rows by) {
  const auto call = impl_->enter_rows();
  const RowView x = impl_->view("multiply", "x", rows);
  const RowView factor = impl_->view("multiply", "by", by);
  cpu::check_width("multiply", "by", factor, x.width);
  cpu::check_count("multiply", "by", factor, x.count);
  cpu::check_apart("multiply", rows, by, true);
  impl_->defer({rows, by}, [=](std::uint32_t i) {
    float* const row = x.row(i);
    const float* const other = factor.row(i);
    for (std::uint32_t j = 0; j < x.width; ++j) row[j] *= other[j];
  });
}

void Backend::add(Rows accumulator, Rows x) {
  const auto call = impl_->enter_rows();
  const RowView a = impl_->view("add", "accumulator", accumulator);
  const RowView b = impl_->view("add", "x", x);
  cpu::check_width("add", "x", b, a.width);
  cpu::check_count("add", "x", b, a.count);
  cpu::check_apart("add", accumulator, x, true);
  const auto kernel = impl_->kernels->add;
  impl_->defer({accumulator, x}, [=](std::uint32_t i) { kernel(a.row(i), b.row(i), a.width); });
}

void Backend::add_bias(Rows rows, WeightId bias) {
  const auto call = impl_->enter_rows();
  const RowView x = impl_->view("add_bias", "x", rows);
  const cpu::Weight& weight = vector_weight(*impl_, "add_bias", bias);
  cpu::check_width("add_bias", "x", x, weight.cols);
  const auto kernel = impl_->kernels->add;
  const float* const values = weight.gain.data();
  impl_->defer({rows}, [=](std::uint32_t i) { kernel(x.row(i), values, x.width); });
}

void Backend::scale(Rows rows, float factor) {
  const auto call = impl_->enter_rows();
  const RowView x = impl_->view("scale", "x", rows);
  check_factor("scale", "factor", factor);
  impl_->defer({rows}, [=](std::uint32_t i) {
    float* const row = x.row(i);
    for (std::uint32_t j = 0; j < x.width; ++j) row[j] *= factor;
  });
}

void Backend::clamped_silu_mul(Rows gate, Rows up) {
  const auto call = impl_->enter_rows();
  gate_rows(*impl_, "clamped_silu_mul", gate, up, impl_->kernels->clamped_silu_mul);
}

void Backend::fill(Rows rows, float value) {
  const auto call = impl_->enter();
  const RowView x = impl_->view("fill", "x", rows);
  for (std::uint32_t i = 0; i < x.count; ++i) std::fill_n(x.row(i), x.width, value);
}

void Backend::scatter_add(Rows in, std::span<const std::uint32_t> rows, std::span<const float> factors,
                          Rows out) {
  const auto call = impl_->enter();
  const RowView x = impl_->view("scatter_add", "in", in);
  const RowView y = impl_->view("scatter_add", "out", out);
  cpu::check_width("scatter_add", "out", y, x.width);
  cpu::check_count("scatter_add", "in", x, rows.size());
  cpu::check_apart("scatter_add", in, out, false);
  if (factors.size() != rows.size())
    refuse("scatter_add",
           std::to_string(factors.size()) + " factors for " + std::to_string(rows.size()) + " rows");
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i] >= y.count || (i > 0 && rows[i] <= rows[i - 1]))
      refuse("scatter_add", "row " + std::to_string(rows[i]) + " of " + std::to_string(y.count) +
                                " is out of range or out of order");
  const std::uint32_t step = cpu::State::rows_per_task(x.width);
  impl_->threads->run(cpu::ceil_div(x.count, step), [&](std::uint32_t task, std::uint32_t) {
    for (std::uint32_t i = task * step; i < std::min(x.count, (task + 1) * step); ++i)
      for (std::uint32_t j = 0; j < x.width; ++j) y.row(rows[i])[j] += factors[i] * x.row(i)[j];
  });
}

void Backend::softcap(Rows rows, float cap) {
  const auto call = impl_->enter_rows();
  const RowView x = impl_->view("softcap", "x", rows);
  if (!(cap > 0) || !std::isfinite(cap))
    refuse("softcap", "cap " + std::to_string(cap) + " must be finite and above 0");
  const auto kernel = impl_->kernels->softcap;
  impl_->defer({rows}, [=](std::uint32_t i) { kernel(x.row(i), cap, x.width); });
}

void Backend::gather(Rows in, std::span<const std::uint32_t> rows, Rows out) {
  const auto call = impl_->enter();
  const RowView x = impl_->view("gather", "in", in);
  const RowView y = impl_->view("gather", "out", out);
  cpu::check_width("gather", "out", y, x.width);
  cpu::check_count("gather", "out", y, rows.size());
  cpu::check_apart("gather", in, out, false);
  for (const std::uint32_t row : rows)
    if (row >= x.count) refuse("gather", "row " + std::to_string(row) + " of " + std::to_string(x.count));
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::memcpy(y.row(i), x.row(rows[i]), x.width * sizeof(float));
}

}  // namespace pykv
