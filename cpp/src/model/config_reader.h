// Floor 4. Reads an architecture's metadata so that nothing that would change the result
// is passed over: every key under the architecture's prefix must be read, known to be
// harmless, or neutral (zero, false, empty, "none").
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "pykv/gguf.h"

namespace pykv {

class ConfigReader {
 public:
  // Keys are read as "<prefix>.<key>". `file` must outlive the reader.
  ConfigReader(const GgufFile& file, std::string prefix);

  // A number in [1, limit]. CorruptModel if it is outside, absent (first form) or of
  // another kind, UnsupportedModel if it is an array (one value per layer).
  std::uint32_t positive(std::string_view key, std::uint32_t limit);
  std::uint32_t positive(std::string_view key, std::uint32_t limit, std::uint32_t otherwise);
  // A number from 0 to 2^32 - 1; larger ones become that.
  std::uint32_t number(std::string_view key, std::uint32_t otherwise);
  // A finite number > 0.
  float positive_float(std::string_view key, double otherwise);
  // The same, or 0, which also stands for "absent".
  float positive_float_or_zero(std::string_view key);
  std::string text(std::string_view key, std::string_view otherwise);

  // A key that something else reads, e.g. as an array.
  void mark_read(std::string_view key) { read_.insert(prefix_ + std::string(key)); }

  // Refuses every key under the prefix that was not read, is not in `harmless` and is not
  // neutral, by name.
  void refuse_others(std::span<const std::string_view> harmless) const;

  [[noreturn]] void corrupt(const std::string& problem) const;
  [[noreturn]] void unsupported(const std::string& problem) const;

 private:
  std::string full(std::string_view key);

  const GgufFile& file_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace pykv
