// Floor 4. Text from a file, made fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace pykv {

// `text` in single quotes, at most `limit` bytes of it (an ellipsis marks the cut).
// Control characters and bytes that are not UTF-8 become \xNN, so that the result is
// always valid UTF-8 and one line, whatever a hostile file contains.
std::string printable(std::string_view text, std::size_t limit = 200);

bool valid_utf8(std::string_view text);

}  // namespace pykv
