// An open step and recurrent layers: each request's state, from one slot to another.
#include <algorithm>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

std::string at(const char* method, std::uint32_t layer) {
  return std::string("[Step.") + method + "] layer " + std::to_string(layer) + " ";
}

std::uint64_t elements_of(const RecurrentSpec& spec) {
  return std::uint64_t{spec.conv_elements} + spec.scan_elements;
}

void check_size(std::size_t size, std::uint64_t expected, std::uint32_t layer, const char* method) {
  if (size == expected) return;
  throw InvalidArgument(at(method, layer) + "has " + std::to_string(expected) +
                        " elements of state in this step, given is room for " + std::to_string(size));
}

}  // namespace

const RecurrentSpec& Step::Impl::check_recurrent(std::uint32_t layer, const Cache::Impl& owner,
                                                 const char* method) const {
  check_layer(layer, owner, method);
  if (owner.config.recurrent.empty() || owner.config.recurrent[layer] == RecurrentSpec{})
    throw InvalidArgument(at(method, layer) + "is not recurrent");
  return owner.config.recurrent[layer];
}

void Step::Impl::check_states_done(const Cache::Impl& owner) const {
  for (std::uint32_t layer = 0; layer < conv_done.size(); ++layer) {
    const RecurrentSpec& spec = owner.config.recurrent[layer];
    if ((spec.conv_elements == 0 || conv_done[layer]) && (spec.scan_elements == 0 || scan_done[layer]))
      continue;
    throw InvalidArgument(at("finish", layer) +
                          "has no new state; use conv() and scan(), or write_states(), or roll back");
  }
}

void Step::conv(std::uint32_t layer, const ConvParams& params, Rows in, Rows out) {
  const auto lock = impl_->link->lock();
  Cache::Impl& cache = impl_->cache("conv");
  impl_->check_computes("conv");
  const RecurrentSpec& spec = impl_->check_recurrent(layer, cache, "conv");
  if (spec.conv_elements == 0 || spec.conv_elements % in.width != 0)
    throw InvalidArgument(at("conv", layer) + "keeps " + std::to_string(spec.conv_elements) +
                          " elements of its convolution, which is no multiple of the width " +
                          std::to_string(in.width));
  cache.backend.causal_conv({cache.states.id, cache.states.layout.conv_offset(layer), impl_->stretches},
                            params, in, out);
  impl_->conv_done[layer] = true;
}

void Step::scan(std::uint32_t layer, const ScanParams& params, Rows x_b_c, Rows dt, Rows out) {
  const auto lock = impl_->link->lock();
  Cache::Impl& cache = impl_->cache("scan");
  impl_->check_computes("scan");
  const RecurrentSpec& spec = impl_->check_recurrent(layer, cache, "scan");
  const std::uint64_t needed = std::uint64_t{params.heads} * params.head_dim * params.state_size;
  if (spec.scan_elements == 0 || needed != spec.scan_elements)
    throw InvalidArgument(at("scan", layer) + "keeps " + std::to_string(spec.scan_elements) +
                          " elements of its scan, this one needs " + std::to_string(needed));
  cache.backend.scan({cache.states.id, cache.states.layout.scan_offset(layer), impl_->stretches}, params,
                     x_b_c, dt, out);
  impl_->scan_done[layer] = true;
}

void Step::read_states(std::uint32_t layer, std::span<float> to) const {
  const auto lock = impl_->link->lock();
  Cache::Impl& cache = impl_->cache("read_states");
  const RecurrentSpec& spec = impl_->check_recurrent(layer, cache, "read_states");
  const std::uint64_t each = elements_of(spec);
  check_size(to.size(), each * impl_->stretches.size(), layer, "read_states");
  for (std::size_t i = 0; i < impl_->stretches.size(); ++i) {
    const std::span<float> own = to.subspan(i * each, each);
    const std::optional<StateSlot> slot = impl_->stretches[i].read;
    if (!slot) {
      std::fill(own.begin(), own.end(), 0.0F);
      continue;
    }
    cache.backend.read_state(cache.states.id, *slot, cache.states.layout.conv_offset(layer),
                             own.first(spec.conv_elements));
    cache.backend.read_state(cache.states.id, *slot, cache.states.layout.scan_offset(layer),
                             own.subspan(spec.conv_elements));
  }
}

void Step::write_states(std::uint32_t layer, std::span<const float> from) {
  const auto lock = impl_->link->lock();
  Cache::Impl& cache = impl_->cache("write_states");
  const RecurrentSpec& spec = impl_->check_recurrent(layer, cache, "write_states");
  const std::uint64_t each = elements_of(spec);
  check_size(from.size(), each * impl_->stretches.size(), layer, "write_states");
  for (std::size_t i = 0; i < impl_->stretches.size(); ++i) {
    const std::span<const float> own = from.subspan(i * each, each);
    const StateSlot slot = impl_->stretches[i].write;
    cache.backend.write_state(cache.states.id, slot, cache.states.layout.conv_offset(layer),
                              own.first(spec.conv_elements));
    cache.backend.write_state(cache.states.id, slot, cache.states.layout.scan_offset(layer),
                              own.subspan(spec.conv_elements));
  }
  impl_->conv_done[layer] = true;
  impl_->scan_done[layer] = true;
}

}  // namespace pykv
