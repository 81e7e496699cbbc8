#include "model/printable.h"

#include <array>
#include <cstdint>

namespace pykv {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t i) { return static_cast<std::uint8_t>(text[i]); }

// Length of the well-formed UTF-8 sequence at `i` (RFC 3629: no overlong forms, no
// surrogates, at most U+10FFFF), 0 if there is none.
std::size_t sequence_length(std::string_view text, std::size_t i) {
  const std::uint8_t lead = byte_at(text, i);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - i < length) return 0;
  for (std::size_t j = 1; j < length; ++j)
    if ((byte_at(text, i + j) & 0xc0U) != 0x80) return 0;
  const std::uint8_t second = byte_at(text, i + 1);
  if (lead == 0xe0 && second < 0xa0) return 0;
  if (lead == 0xed && second > 0x9f) return 0;
  if (lead == 0xf0 && second < 0x90) return 0;
  if (lead == 0xf4 && second > 0x8f) return 0;
  return length;
}

}  // namespace

bool valid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string printable(std::string_view text, std::size_t limit) {
  static constexpr std::array<char, 17> kDigits{"0123456789abcdef"};
  std::string out = "'";
  std::size_t i = 0;
  while (i < text.size() && i < limit) {
    const std::size_t length = sequence_length(text, i);
    const std::uint8_t lead = byte_at(text, i);
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      out += "\\x";
      out += kDigits.at(lead >> 4U);
      out += kDigits.at(lead & 15U);
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  out += i < text.size() ? "...'" : "'";
  return out;
}

}  // namespace pykv
