// Floor 4. Numbers of the GGUF container format (versions 2 and 3, little-endian) and
// the limits this reader sets, which no real model comes near.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "pykv/dtype.h"

namespace pykv::gguf {

// Metadata value types by their number in the file.
enum class Kind : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr std::uint32_t kKindCount = 13;

// Bytes of one value; 0 for string and array.
std::size_t kind_bytes(Kind kind);
const char* kind_name(Kind kind);

struct TensorType {
  std::uint32_t id;
  std::string name;  // as GGUF writes it, "Q4_1"
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
  std::optional<DType> type;  // nullopt: known, but without a DType in this build
};
// nullptr: a number this build does not know.
const TensorType* find_tensor_type(std::uint32_t id);

inline constexpr std::uint64_t kMaxHeaderBytes = 256ULL << 20;  // all before the tensor data
inline constexpr std::uint64_t kMaxKeys = 16384;
inline constexpr std::uint64_t kMaxTensors = 65536;
inline constexpr std::uint64_t kMaxKeyBytes = 4096;
inline constexpr std::uint64_t kMaxTensorNameBytes = 255;
inline constexpr std::uint64_t kMaxStringBytes = 16ULL << 20;
inline constexpr std::uint64_t kMaxArrayElements = 1ULL << 20;  // that an accessor returns
inline constexpr std::uint32_t kMaxArrayDepth = 4;
inline constexpr std::uint32_t kMaxDimensions = 4;
inline constexpr std::uint64_t kDefaultAlignment = 32;
inline constexpr std::uint64_t kMinAlignment = 8;
inline constexpr std::uint64_t kMaxAlignment = 65536;

}  // namespace pykv::gguf
