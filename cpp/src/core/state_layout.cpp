#include "pykv/state_layout.h"

#include <limits>
#include <string>

#include "pykv/errors.h"

namespace pykv {
namespace {

constexpr std::uint64_t kSlotAlign = 4096;  // a page: slots are committed and released alone
constexpr std::uint64_t kPartAlign = 16;    // elements: a part starts on a multiple of 64 bytes

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

StateLayout::StateLayout(const RecurrentTable& layers) : layers_(layers) {
  std::uint64_t at = 0;
  for (const RecurrentSpec& layer : layers) {
    const std::uint64_t scan = at + round_up(layer.conv_elements, kPartAlign);
    places_.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(scan)});
    at = scan + round_up(layer.scan_elements, kPartAlign);
    if (at * sizeof(float) > std::numeric_limits<std::uint32_t>::max())
      throw InvalidArgument("[StateLayout] the states of the first " + std::to_string(places_.size()) +
                            " layers take " + std::to_string(at * sizeof(float)) +
                            " bytes for one sequence; the limit is 2^32 - 1");
  }
  slot_bytes_ = round_up(at * sizeof(float), kSlotAlign);
}

}  // namespace pykv
