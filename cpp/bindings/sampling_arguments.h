// Floor 6. SamplingParams as keyword arguments, for all that take them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "arguments.h"
#include "pykv/sampling.h"

namespace pykv::bindings {

struct SamplingArgs {
  float temperature;
  const PyInt& top_k;
  float top_p, min_p, typical_p, top_n_sigma, repeat_penalty;
  const PyInt& repeat_last_n;
  float presence_penalty, frequency_penalty;
  const pybind11::dict& logit_bias;  // token id -> float
  const PyInt& seed;

  SamplingParams params(const std::string& method) const;  // "[Class.method] "
};

// Their names and defaults, in the same order.
// NOLINTNEXTLINE: a list of arguments cannot be a function
#define PYKV_SAMPLING_ARGUMENTS                                                                             \
  pybind11::arg("temperature") = SamplingParams{}.temperature,                                              \
  pybind11::arg("top_k") = SamplingParams{}.top_k, pybind11::arg("top_p") = SamplingParams{}.top_p,         \
  pybind11::arg("min_p") = SamplingParams{}.min_p, pybind11::arg("typical_p") = SamplingParams{}.typical_p, \
  pybind11::arg("top_n_sigma") = SamplingParams{}.top_n_sigma,                                              \
  pybind11::arg("repeat_penalty") = SamplingParams{}.repeat_penalty,                                        \
  pybind11::arg("repeat_last_n") = SamplingParams{}.repeat_last_n,                                          \
  pybind11::arg("presence_penalty") = SamplingParams{}.presence_penalty,                                    \
  pybind11::arg("frequency_penalty") = SamplingParams{}.frequency_penalty,                                  \
  pybind11::arg("logit_bias") = pybind11::dict(), pybind11::arg("seed") = SamplingParams{}.seed

// Integers of all 64 bits, one more than to_int() knows.
std::uint64_t to_uint64(const PyInt& argument, const std::string& what);

}  // namespace pykv::bindings
