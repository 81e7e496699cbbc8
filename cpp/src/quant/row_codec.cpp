#include <string>

#include "pykv/errors.h"
#include "pykv/quant.h"
#include "quant/block_codec.h"

namespace pykv {
namespace {

void check_sizes(const char* where, DType type, std::size_t elements, std::size_t bytes) {
  const std::size_t expected = row_bytes(type, elements);
  if (bytes != expected)
    throw InvalidArgument("[" + std::string(where) + "] " + std::to_string(bytes) + " bytes for " +
                          std::to_string(elements) + " elements of " + traits(type).name + ", which take " +
                          std::to_string(expected));
}

}  // namespace

void encode_row(DType type, std::span<const float> values, std::span<std::byte> out) {
  check_sizes("encode_row", type, values.size(), out.size());
  const std::size_t n = values.size();
  switch (type) {
    case DType::f32:
      if (n != 0) std::memcpy(out.data(), values.data(), n * sizeof(float));
      return;
    case DType::f16:
      for (std::size_t i = 0; i < n; ++i) quant::store16(out.data() + 2 * i, f16_from_f32(values[i]));
      return;
    case DType::bf16:
      for (std::size_t i = 0; i < n; ++i) quant::store16(out.data() + 2 * i, bf16_from_f32(values[i]));
      return;
    default: {
      const auto& [t, encode, decode] = quant::format(type);
      if (encode == nullptr)
        throw Unsupported("[encode_row] " + std::string(t.name) +
                          " is a type of weights, which are read only; use a type of K and V");
      for (std::size_t b = 0; b < n / t.block_elements; ++b)
        encode(values.data() + b * t.block_elements, out.data() + b * t.block_bytes);
    }
  }
}

void decode_row(DType type, std::span<const std::byte> bytes, std::span<float> out) {
  check_sizes("decode_row", type, out.size(), bytes.size());
  const std::size_t n = out.size();
  switch (type) {
    case DType::f32:
      if (n != 0) std::memcpy(out.data(), bytes.data(), n * sizeof(float));
      return;
    case DType::f16:
      for (std::size_t i = 0; i < n; ++i) out[i] = f32_from_f16(quant::load16(bytes.data() + 2 * i));
      return;
    case DType::bf16:
      for (std::size_t i = 0; i < n; ++i) out[i] = f32_from_bf16(quant::load16(bytes.data() + 2 * i));
      return;
    default: {
      const auto& [t, encode, decode] = quant::format(type);
      for (std::size_t b = 0; b < n / t.block_elements; ++b)
        decode(bytes.data() + b * t.block_bytes, out.data() + b * t.block_elements);
    }
  }
}

}  // namespace pykv
