#include "pykv/dtype.h"

#include <algorithm>
#include <array>

#include "pykv/errors.h"
#include "quant/block_codec.h"

namespace pykv {
namespace {

std::string kv_type_names() {
  std::string names;
  for (const DTypeTraits& t : all_dtypes()) {
    if (!t.for_kv) continue;
    if (!names.empty()) names += ", ";
    names += t.name;
  }
  return names;
}

}  // namespace

const DTypeTraits& traits(DType type) { return quant::format(type).traits; }

std::span<const DTypeTraits> all_dtypes() {
  static const auto all = [] {
    std::array<DTypeTraits, kDTypeCount> out{};
    std::transform(quant::formats().begin(), quant::formats().end(), out.begin(),
                   [](const quant::Format& f) { return f.traits; });
    return out;
  }();
  return all;
}

DType parse_kv_type(std::string_view name) {
  for (const DTypeTraits& t : all_dtypes()) {
    if (name == t.name && t.for_kv) return t.type;
  }
  constexpr std::size_t kShown = 40;  // names may come from a request
  throw InvalidArgument("[DType] \"" + std::string(name.substr(0, kShown)) +
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
