// Floor 1. Storage types of K, V and weights, by the field's names. Block formats
// are those of GGUF (see cpp/include/pykv/quant.h for the rounding rules).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pykv {

// f32, f16, bf16 have no blocks, q8_0 … iq4_nl blocks of 32 elements, the K types q2_k … q6_k
// of 256; these are for weights only.
enum class DType : std::uint8_t {
  f32,
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  iq4_nl,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k
};
inline constexpr std::size_t kDTypeCount = 14;

struct DTypeTraits {
  DType type;
  const char* name;              // as on the command line, in JSON and in metrics; GGUF's in lower case
  std::uint32_t gguf_id;         // number in GGUF files
  std::uint32_t block_elements;  // elements per block, 1 for plain types
  std::uint32_t block_bytes;     // bytes per block in GGUF's layout
  bool for_kv;                   // usable as K or V type in this build
};

const DTypeTraits& traits(DType type);

constexpr bool is_k_type(DType type) { return type >= DType::q2_k; }

// Parts of a block (quant.h), not of the K types.
constexpr bool is_quantized(DType type) { return type >= DType::q8_0; }
constexpr bool has_minimum(DType type) { return type == DType::q4_1 || type == DType::q5_1; }
constexpr bool has_fifth_bits(DType type) { return type == DType::q5_0 || type == DType::q5_1; }
// Bytes of a quantized type's codes, without scales and fifth bits.
constexpr std::uint32_t code_bytes(DType type) { return type == DType::q8_0 ? 32 : 16; }

std::span<const DTypeTraits> all_dtypes();

// Parses a --cache-type-k/-v name. Throws InvalidArgument naming the types that work.
DType parse_kv_type(std::string_view name);

// Bytes of `elements` elements in GGUF's row layout. `elements` must be a
// multiple of the block size (throws InvalidArgument).
std::size_t row_bytes(DType type, std::size_t elements);

}  // namespace pykv
