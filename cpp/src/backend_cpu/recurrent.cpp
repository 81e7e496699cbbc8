// Recurrent layers: stretches of sequences through a causal convolution or a scan. Work is
// shared out by channels and heads, never by time.
#include <algorithm>
#include <cmath>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

using cpu::refuse;
using cpu::RowView;
using cpu::States;
using kernels::kConvChannels;
using kernels::kPanelWidth;

void check_slots(const char* method, const States& states, std::span<const StateStretch> stretches) {
  std::vector<StateSlot> written, used;
  for (const StateStretch& stretch : stretches) {
    cpu::check_slot(method, states, stretch.write);
    written.push_back(stretch.write);
    if (!stretch.read) continue;
    cpu::check_slot(method, states, *stretch.read);
    used.push_back(*stretch.read);
  }
  std::sort(written.begin(), written.end());
  if (const auto twice = std::adjacent_find(written.begin(), written.end()); twice != written.end())
    refuse(method, "slot " + std::to_string(twice->value) + " is written by two stretches");
  for (const StateSlot slot : used)
    if (std::binary_search(written.begin(), written.end(), slot))
      refuse(method, "slot " + std::to_string(slot.value) + " is read and written in one call");
}

void check_rows(const char* method, std::span<const StateStretch> stretches, std::uint32_t count) {
  std::uint64_t covered = 0;
  for (const StateStretch& stretch : stretches) {
    if (stretch.rows == 0 || stretch.first_row != covered || covered + stretch.rows > count)
      refuse(method, "a stretch of rows " + std::to_string(stretch.first_row) + " to " +
                         std::to_string(std::uint64_t{stretch.first_row} + stretch.rows) +
                         "; stretches follow each other and end with row " + std::to_string(count));
    covered += stretch.rows;
  }
  if (covered != count)
    refuse(method, "stretches cover " + std::to_string(covered) + " of " + std::to_string(count) + " rows");
}

const float* read_part(const States& states, const StateBatch& batch, const StateStretch& stretch) {
  return stretch.read ? states.slot(*stretch.read) + batch.offset : nullptr;
}

const float* vector_of(const cpu::State& state, const char* method, WeightId id, std::uint32_t length) {
  const cpu::Weight& weight = state.weight(method, id);
  if (weight.rows != 1 || weight.cols != length)
    refuse(method, "the weight has the shape [" + std::to_string(weight.rows) + ", " +
                       std::to_string(weight.cols) + "], needed is [1, " + std::to_string(length) + "]");
  return weight.gain.data();
}

const cpu::Weight& taps_of(const cpu::State& state, WeightId id, std::uint32_t channels) {
  const cpu::Weight& taps = state.weight("causal_conv", id);
  const bool plain = taps.type == DType::f32 || taps.type == DType::f16;
  if (taps.rows != channels || taps.rows == 1 || taps.cols > kernels::kMaxTaps || !plain)
    refuse("causal_conv", "taps have the shape [" + std::to_string(taps.rows) + ", " +
                              std::to_string(taps.cols) + "], type " + traits(taps.type).name +
                              "; needed are [" + std::to_string(channels) + ", up to " +
                              std::to_string(kernels::kMaxTaps) + "] of f32 or f16, with 2 channels or more");
  return taps;
}

// Up to 256 channels from `first` on, in one stretch.
void convolve_channels(const cpu::State& state, kernels::ConvTask task, const cpu::Weight& taps,
                       std::uint32_t first) {
  alignas(64) float tile[kConvChannels * kernels::kMaxTaps];
  for (std::uint32_t at = 0; at < task.channels; at += kPanelWidth) {
    const std::byte* const panel = taps.panels + (first + at) / kPanelWidth * taps.layout.bytes;
    state.kernels->decode_panel(
        {taps.type, panel, panel + taps.layout.fifth_offset, panel + taps.layout.values_offset}, 0, taps.cols,
        tile + std::size_t{at} * taps.cols);
  }
  task.taps = tile;
  state.kernels->convolve(task);
}

void check_scan(const ScanParams& p, const RowView& in, const RowView& dt, const RowView& out) {
  const std::string text = std::to_string(p.heads) + " heads of " + std::to_string(p.head_dim) + " in " +
                           std::to_string(p.groups) + " groups, states of " + std::to_string(p.state_size);
  constexpr std::uint32_t kMost = 1U << 16;
  const auto sane = [](std::uint32_t n) { return n >= 1 && n <= kMost; };
  if (!sane(p.heads) || !sane(p.head_dim) || !sane(p.groups) || !sane(p.state_size) ||
      p.heads % p.groups != 0)
    refuse("scan", text + "; each is 1 to 65536, and groups divide heads");
  const std::uint64_t inner = std::uint64_t{p.heads} * p.head_dim;
  cpu::check_width("scan", "x_b_c", in, inner + 2 * std::uint64_t{p.groups} * p.state_size);
  cpu::check_width("scan", "dt", dt, p.heads);
  cpu::check_width("scan", "out", out, inner);
  cpu::check_count("scan", "dt", dt, in.count);
  cpu::check_count("scan", "out", out, in.count);
}

float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

// scan_factors of all rows.
void fill_factors(cpu::State& state, const ScanParams& params, const RowView& dt) {
  const std::size_t half = std::size_t{params.heads} * dt.count;
  state.scan_factors.resize(2 * half);
  float* const steps = state.scan_factors.data();
  const float* const a = vector_of(state, "scan", params.a, params.heads);
  const float* const bias = vector_of(state, "scan", params.dt_bias, params.heads);
  state.threads->run(params.heads, [&](std::uint32_t head, std::uint32_t) {
    for (std::uint32_t i = 0; i < dt.count; ++i) {
      const float step = softplus(dt.row(i)[head] + bias[head]);
      const std::size_t at = std::size_t{head} * dt.count + i;
      steps[at] = step;
      steps[half + at] = std::exp(step * a[head]);
    }
  });
}

}  // namespace

void Backend::causal_conv(const StateBatch& batch, const ConvParams& params, Rows in, Rows out) {
  const auto call = impl_->enter();
  const States& states = impl_->states_of("causal_conv", batch.states);
  const RowView x = impl_->view("causal_conv", "in", in);
  const RowView y = impl_->view("causal_conv", "out", out);
  cpu::check_width("causal_conv", "out", y, x.width);
  cpu::check_count("causal_conv", "out", y, x.count);
  cpu::check_apart("causal_conv", in, out, false);
  const cpu::Weight& taps = taps_of(*impl_, params.taps, x.width);
  const float* const bias = params.bias ? vector_of(*impl_, "causal_conv", *params.bias, x.width) : nullptr;
  cpu::check_part("causal_conv", states, batch.offset, std::uint64_t{x.width} * (taps.cols - 1));
  check_slots("causal_conv", states, batch.stretches);
  check_rows("causal_conv", batch.stretches, x.count);

  const std::uint32_t pieces = cpu::ceil_div(x.width, kConvChannels);
  const auto tasks = static_cast<std::uint32_t>(batch.stretches.size()) * pieces;
  impl_->threads->run(tasks, [&](std::uint32_t index, std::uint32_t) {
    const StateStretch& stretch = batch.stretches[index / pieces];
    const std::uint32_t first = index % pieces * kConvChannels;
    const float* const before = read_part(states, batch, stretch);
    convolve_channels(*impl_,
                      {.bias = bias == nullptr ? nullptr : bias + first,
                       .tap_count = taps.cols,
                       .channels = std::min(kConvChannels, x.width - first),
                       .rows = stretch.rows,
                       .silu = params.silu,
                       .before = before == nullptr ? nullptr : before + first,
                       .after = states.slot(stretch.write) + batch.offset + first,
                       .state_stride = x.width,
                       .in = x.row(stretch.first_row) + first,
                       .in_stride = x.stride,
                       .out = y.row(stretch.first_row) + first,
                       .out_stride = y.stride},
                      taps, first);
  });
}

void Backend::scan(const StateBatch& batch, const ScanParams& params, Rows x_b_c, Rows dt, Rows out) {
  const auto call = impl_->enter();
  const States& states = impl_->states_of("scan", batch.states);
  const RowView in = impl_->view("scan", "x_b_c", x_b_c);
  const RowView steps = impl_->view("scan", "dt", dt);
  const RowView y = impl_->view("scan", "out", out);
  check_scan(params, in, steps, y);
  cpu::check_apart("scan", x_b_c, out, false);
  cpu::check_apart("scan", dt, out, false);
  const std::uint32_t inner = params.heads * params.head_dim;
  const std::uint64_t head_state = std::uint64_t{params.state_size} * params.head_dim;
  cpu::check_part("scan", states, batch.offset, params.heads * head_state);
  check_slots("scan", states, batch.stretches);
  check_rows("scan", batch.stretches, in.count);
  const float* const d = vector_of(*impl_, "scan", params.d, params.heads);
  fill_factors(*impl_, params, steps);

  const std::size_t half = std::size_t{params.heads} * in.count;
  const auto tasks = static_cast<std::uint32_t>(batch.stretches.size()) * params.heads;
  impl_->threads->run(tasks, [&](std::uint32_t index, std::uint32_t) {
    const StateStretch& stretch = batch.stretches[index / params.heads];
    const std::uint32_t head = index % params.heads;
    const float* const row = in.row(stretch.first_row);
    const float* const b =
        row + inner + std::size_t{head / (params.heads / params.groups)} * params.state_size;
    const float* const factor = impl_->scan_factors.data() + std::size_t{head} * in.count + stretch.first_row;
    const float* const before = read_part(states, batch, stretch);
    impl_->kernels->scan({.head_dim = params.head_dim,
                          .state_size = params.state_size,
                          .rows = stretch.rows,
                          .before = before == nullptr ? nullptr : before + head * head_state,
                          .after = states.slot(stretch.write) + batch.offset + head * head_state,
                          .x = row + std::size_t{head} * params.head_dim,
                          .b = b,
                          .c = b + std::size_t{params.groups} * params.state_size,
                          .in_stride = in.stride,
                          .dt = factor,
                          .decay = factor + half,
                          .d = d[head],
                          .out = y.row(stretch.first_row) + std::size_t{head} * params.head_dim,
                          .out_stride = y.stride});
  });
}

}  // namespace pykv
