#include <vector>

#include "kernels/kernels.h"

namespace pykv::kernels {

std::span<const Kernels* const> available_kernels() {
  static const std::vector<const Kernels*> tiers = [] {
    std::vector<const Kernels*> found;
    for (const Kernels* tier :
         {scalar_kernels(), neon_kernels(), avx2_kernels(), avx512_kernels(), avx512_bf16_kernels()})
      if (tier != nullptr) found.push_back(tier);
    return found;
  }();
  return tiers;
}

const Kernels* find_kernels(std::string_view name) {
  for (const Kernels* tier : available_kernels())
    if (name == tier->name) return tier;
  return nullptr;
}

}  // namespace pykv::kernels
