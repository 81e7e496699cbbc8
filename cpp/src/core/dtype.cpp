#include "pykv/dtype.h"

#include <array>

#include "pykv/errors.h"

namespace pykv {
namespace {

// In the order of the enum. Block sizes are GGUF's.
constexpr std::array<DTypeTraits, 9> kTraits{{
    {DType::f32, "f32", 1, 4, true, true},
    {DType::f16, "f16", 1, 2, true, true},
    {DType::bf16, "bf16", 1, 2, true, false},
    {DType::q8_0, "q8_0", 32, 34, true, true},
    {DType::q4_0, "q4_0", 32, 18, true, false},
    {DType::q4_1, "q4_1", 32, 20, true, true},
    {DType::q5_0, "q5_0", 32, 22, true, false},
    {DType::q5_1, "q5_1", 32, 24, true, false},
    {DType::iq4_nl, "iq4_nl", 32, 18, true, false},
}};

std::string kv_type_names() {
  std::string names;
  for (const DTypeTraits& t : kTraits) {
    if (!t.for_kv) continue;
    if (!names.empty()) names += ", ";
    names += t.name;
  }
  return names;
}

}  // namespace

const DTypeTraits& traits(DType type) {
  const auto index = static_cast<std::size_t>(type);
  if (index >= kTraits.size()) {
    throw InvalidArgument("[traits] type number " + std::to_string(index) +
                          " is not a type; the last one is " + std::to_string(kTraits.size() - 1));
  }
  return kTraits[index];
}

std::span<const DTypeTraits> all_dtypes() { return kTraits; }

DType parse_kv_type(std::string_view name) {
  for (const DTypeTraits& t : kTraits) {
    if (name == t.name && t.for_kv) return t.type;
  }
  constexpr std::size_t kShown = 40;  // names may come from a request
  throw InvalidArgument("[parse_kv_type] \"" + std::string(name.substr(0, kShown)) +
                        "\" is not a K or V type of this build; use one of " + kv_type_names());
}

std::size_t row_bytes(DType type, std::size_t elements) {
  const DTypeTraits& t = traits(type);
  if (elements % t.block_elements != 0) {
    throw InvalidArgument("[row_bytes] " + std::to_string(elements) + " elements are not a multiple of " +
                          t.name + "'s block of " + std::to_string(t.block_elements));
  }
  return elements / t.block_elements * t.block_bytes;
}

}  // namespace pykv
