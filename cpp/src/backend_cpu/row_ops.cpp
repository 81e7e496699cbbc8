#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

using cpu::refuse;
using cpu::RowView;

// Rows for a task of these cheap operations: about 32 KiB of float32.
std::uint32_t rows_per_task(std::uint32_t width) { return std::max(1U, 8192U / width); }

template <class Body>
void for_rows(cpu::ThreadPool& threads, const RowView& view, Body&& body) {
  const std::uint32_t step = rows_per_task(view.width);
  const std::uint32_t tasks = (view.count + step - 1) / step;
  threads.run(tasks, [&](std::uint32_t task, std::uint32_t) {
    const std::uint32_t end = std::min(view.count, (task + 1) * step);
    for (std::uint32_t i = task * step; i < end; ++i) body(i);
  });
}

void check_rope(const RowView& x, std::uint32_t heads, const RopeParams& params,
                std::span<const Pos> positions) {
  if (heads == 0 || x.width % heads != 0)
    refuse("rope", std::to_string(heads) + " heads do not divide the width " + std::to_string(x.width));
  const std::uint32_t head_dim = x.width / heads;
  if (params.dims == 0 || params.dims % 2 != 0 || params.dims > head_dim)
    refuse("rope", "dims " + std::to_string(params.dims) + " must be even and 2 to the head size " +
                       std::to_string(head_dim));
  if (!(params.base > 0) || !std::isfinite(params.base))
    refuse("rope", "base " + std::to_string(params.base) + " must be positive and finite");
  cpu::check_count("rope", "x", x, positions.size());
  for (const Pos position : positions)
    if (position < 0) refuse("rope", "position " + std::to_string(position) + " is negative");
}

// Angles in double: at position 100,000 a float32 angle is off by 0.004.
void fill_rope_table(cpu::RopeTable& table, const RopeParams& params, std::span<const Pos> positions) {
  if (table.dims == params.dims && table.base == params.base &&
      std::equal(positions.begin(), positions.end(), table.positions.begin(), table.positions.end()))
    return;
  const std::size_t pairs = params.dims / 2;
  std::vector<double> frequency(pairs);
  for (std::size_t i = 0; i < pairs; ++i)
    frequency[i] = std::pow(double{params.base}, -2.0 * static_cast<double>(i) / params.dims);
  table.dims = 0;  // not valid if an allocation fails below
  table.base = params.base;
  table.positions.assign(positions.begin(), positions.end());
  table.cos_sin.resize(positions.size() * pairs * 2);
  float* to = table.cos_sin.data();
  for (const Pos position : positions)
    for (std::size_t i = 0; i < pairs; ++i, to += 2) {
      const double angle = position * frequency[i];
      to[0] = static_cast<float>(std::cos(angle));
      to[1] = static_cast<float>(std::sin(angle));
    }
  table.dims = params.dims;
}

void rotate_head(float* head, const RopeParams& params, const float* cos_sin) {
  const std::uint32_t pairs = params.dims / 2;
  const std::uint32_t step = params.interleaved ? 2 : 1;
  const std::uint32_t partner = params.interleaved ? 1 : pairs;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    float* const a = head + i * step;
    float* const b = a + partner;
    const float x = *a;
    const float y = *b;
    *a = x * cos_sin[2 * i] - y * cos_sin[2 * i + 1];
    *b = x * cos_sin[2 * i + 1] + y * cos_sin[2 * i];
  }
}

}  // namespace

void Backend::rms_norm(Rows in, WeightId gain, float epsilon, Rows out) {
  const auto call = impl_->enter();
  const RowView x = impl_->view("rms_norm", "in", in);
  const RowView y = impl_->view("rms_norm", "out", out);
  const cpu::Weight& weight = impl_->weight("rms_norm", gain);
  if (weight.rows != 1) refuse("rms_norm", "gain has " + std::to_string(weight.rows) + " rows, needed is 1");
  cpu::check_width("rms_norm", "in", x, weight.cols);
  cpu::check_width("rms_norm", "out", y, x.width);
  cpu::check_count("rms_norm", "out", y, x.count);
  cpu::check_apart("rms_norm", in, out, true);
  if (!(epsilon >= 0) || !std::isfinite(epsilon))
    refuse("rms_norm", "epsilon " + std::to_string(epsilon) + " must be finite and not negative");
  for_rows(*impl_->threads, x, [&](std::uint32_t i) {
    impl_->kernels->rms_norm(x.row(i), weight.gain.data(), epsilon, x.width, y.row(i));
  });
}

void Backend::rope(Rows rows, std::uint32_t heads, const RopeParams& params, std::span<const Pos> positions) {
  const auto call = impl_->enter();
  const RowView x = impl_->view("rope", "x", rows);
  check_rope(x, heads, params, positions);
  fill_rope_table(impl_->rope, params, positions);
  const std::uint32_t head_dim = x.width / heads;
  const float* const table = impl_->rope.cos_sin.data();
  for_rows(*impl_->threads, x, [&](std::uint32_t i) {
    for (std::uint32_t head = 0; head < heads; ++head)
      rotate_head(x.row(i) + std::size_t{head} * head_dim, params, table + std::size_t{i} * params.dims);
  });
}

void Backend::silu_mul(Rows gate, Rows up) {
  const auto call = impl_->enter();
  const RowView g = impl_->view("silu_mul", "gate", gate);
  const RowView u = impl_->view("silu_mul", "up", up);
  cpu::check_width("silu_mul", "up", u, g.width);
  cpu::check_count("silu_mul", "up", u, g.count);
  cpu::check_apart("silu_mul", gate, up, true);
  for_rows(*impl_->threads, g,
           [&](std::uint32_t i) { impl_->kernels->silu_mul(g.row(i), u.row(i), g.width); });
}

void Backend::add(Rows accumulator, Rows x) {
  const auto call = impl_->enter();
  const RowView a = impl_->view("add", "accumulator", accumulator);
  const RowView b = impl_->view("add", "x", x);
  cpu::check_width("add", "x", b, a.width);
  cpu::check_count("add", "x", b, a.count);
  cpu::check_apart("add", accumulator, x, true);
  for_rows(*impl_->threads, a, [&](std::uint32_t i) { impl_->kernels->add(a.row(i), b.row(i), a.width); });
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
