#include "model/gguf_format.h"

#include <algorithm>
#include <array>

namespace pykv::gguf {
namespace {

// Numbers, block sizes and block bytes of the ggml tensor types. Types without a DType
// are listed too, so that their extents can be checked and their names told.
constexpr std::array kTensorTypes{
    TensorType{0, "F32", 1, 4, DType::f32},           TensorType{1, "F16", 1, 2, DType::f16},
    TensorType{2, "Q4_0", 32, 18, DType::q4_0},       TensorType{3, "Q4_1", 32, 20, DType::q4_1},
    TensorType{6, "Q5_0", 32, 22, DType::q5_0},       TensorType{7, "Q5_1", 32, 24, DType::q5_1},
    TensorType{8, "Q8_0", 32, 34, DType::q8_0},       TensorType{10, "Q2_K", 256, 84, std::nullopt},
    TensorType{11, "Q3_K", 256, 110, std::nullopt},   TensorType{12, "Q4_K", 256, 144, std::nullopt},
    TensorType{13, "Q5_K", 256, 176, std::nullopt},   TensorType{14, "Q6_K", 256, 210, std::nullopt},
    TensorType{15, "Q8_K", 256, 292, std::nullopt},   TensorType{16, "IQ2_XXS", 256, 66, std::nullopt},
    TensorType{17, "IQ2_XS", 256, 74, std::nullopt},  TensorType{18, "IQ3_XXS", 256, 98, std::nullopt},
    TensorType{19, "IQ1_S", 256, 50, std::nullopt},   TensorType{20, "IQ4_NL", 32, 18, DType::iq4_nl},
    TensorType{21, "IQ3_S", 256, 110, std::nullopt},  TensorType{22, "IQ2_S", 256, 82, std::nullopt},
    TensorType{23, "IQ4_XS", 256, 136, std::nullopt}, TensorType{24, "I8", 1, 1, std::nullopt},
    TensorType{25, "I16", 1, 2, std::nullopt},        TensorType{26, "I32", 1, 4, std::nullopt},
    TensorType{27, "I64", 1, 8, std::nullopt},        TensorType{28, "F64", 1, 8, std::nullopt},
    TensorType{29, "IQ1_M", 256, 56, std::nullopt},   TensorType{30, "BF16", 1, 2, DType::bf16},
    TensorType{34, "TQ1_0", 256, 54, std::nullopt},   TensorType{35, "TQ2_0", 256, 66, std::nullopt},
    TensorType{39, "MXFP4", 32, 17, std::nullopt},
};

constexpr std::array<std::size_t, kKindCount> kKindBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::array<const char*, kKindCount> kKindNames{"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                         "int32",  "float32", "bool",   "string", "array",
                                                         "uint64", "int64",   "float64"};

}  // namespace

std::size_t kind_bytes(Kind kind) { return kKindBytes.at(static_cast<std::size_t>(kind)); }
const char* kind_name(Kind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

const TensorType* find_tensor_type(std::uint32_t id) {
  const auto* const found = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                         [id](const TensorType& t) { return t.id == id; });
  return found == kTensorTypes.end() ? nullptr : &*found;
}

}  // namespace pykv::gguf
