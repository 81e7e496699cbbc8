#include "model/gguf_format.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace pykv::gguf {
namespace {

// In GGUF the names of DTypes are in upper case.
std::string upper(std::string name) {
  for (char& c : name)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return name;
}

// Numbers, block sizes and block bytes of the ggml tensor types. Those without a DType are
// listed too, so that their extents can be checked and their names told.
std::vector<TensorType> all_tensor_types() {
  std::vector<TensorType> types{
      {15, "Q8_K", 256, 292, {}},   {16, "IQ2_XXS", 256, 66, {}}, {17, "IQ2_XS", 256, 74, {}},
      {18, "IQ3_XXS", 256, 98, {}}, {19, "IQ1_S", 256, 50, {}},   {21, "IQ3_S", 256, 110, {}},
      {22, "IQ2_S", 256, 82, {}},   {23, "IQ4_XS", 256, 136, {}}, {24, "I8", 1, 1, {}},
      {25, "I16", 1, 2, {}},        {26, "I32", 1, 4, {}},        {27, "I64", 1, 8, {}},
      {28, "F64", 1, 8, {}},        {29, "IQ1_M", 256, 56, {}},   {34, "TQ1_0", 256, 54, {}},
      {35, "TQ2_0", 256, 66, {}},   {39, "MXFP4", 32, 17, {}},
  };
  for (const DTypeTraits& t : all_dtypes())
    types.push_back({t.gguf_id, upper(t.name), t.block_elements, t.block_bytes, t.type});
  return types;
}

constexpr std::array<std::size_t, kKindCount> kKindBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::array<const char*, kKindCount> kKindNames{"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                         "int32",  "float32", "bool",   "string", "array",
                                                         "uint64", "int64",   "float64"};

}  // namespace

std::size_t kind_bytes(Kind kind) { return kKindBytes.at(static_cast<std::size_t>(kind)); }
const char* kind_name(Kind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

const TensorType* find_tensor_type(std::uint32_t id) {
  static const std::vector<TensorType> types = all_tensor_types();
  const auto found =
      std::find_if(types.begin(), types.end(), [id](const TensorType& t) { return t.id == id; });
  return found == types.end() ? nullptr : &*found;
}

}  // namespace pykv::gguf
