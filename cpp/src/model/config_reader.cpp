#include "model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <variant>

#include "model/printable.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

// Whether a setting of this value means "nothing special".
bool neutral(const GgufFile::Value& value) {
  return std::visit(
      [](const auto& v) {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>) {
          return v.empty() || v == "none";
        } else {
          return v == std::decay_t<decltype(v)>{};
        }
      },
      value);
}

}  // namespace

ConfigReader::ConfigReader(const GgufFile& file, std::string prefix)
    : file_(file), prefix_(std::move(prefix) + ".") {}

void ConfigReader::corrupt(const std::string& problem) const {
  throw CorruptModel("[Model.load] " + printable(file_.path(), 4096) + ": " + problem +
                     "; the values do not fit together, convert the model again");
}

void ConfigReader::unsupported(const std::string& problem) const {
  throw UnsupportedModel("[Model.load] " + printable(file_.path(), 4096) + ": " + problem +
                         "; this build cannot compute it, use another model");
}

std::string ConfigReader::full(std::string_view key) {
  std::string name = prefix_ + std::string(key);
  read_.insert(name);
  if (file_.array_size(name)) unsupported("metadata key " + printable(name) + " differs between layers");
  return name;
}

std::uint32_t ConfigReader::positive(std::string_view key, std::uint32_t limit) {
  const std::string name = full(key);
  const std::uint64_t value = file_.unsigned_value(name);
  if (value == 0 || value > limit)
    corrupt("metadata key " + printable(name) + " is " + std::to_string(value) + ", allowed is 1 to " +
            std::to_string(limit));
  return static_cast<std::uint32_t>(value);
}

std::uint32_t ConfigReader::positive(std::string_view key, std::uint32_t limit, std::uint32_t otherwise) {
  return file_.has(full(key)) ? positive(key, limit) : otherwise;
}

std::uint32_t ConfigReader::number(std::string_view key, std::uint32_t otherwise) {
  constexpr std::uint64_t kLargest = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min(kLargest, file_.unsigned_value(full(key), otherwise)));
}

float ConfigReader::positive_float(std::string_view key, double otherwise) {
  const std::string name = full(key);
  const double value = file_.float_value(name, otherwise);
  if (!(value >= static_cast<double>(std::numeric_limits<float>::min())) ||
      value > static_cast<double>(std::numeric_limits<float>::max()))
    corrupt("metadata key " + printable(name) + " is " + std::to_string(value) +
            ", it must be finite and above 0");
  return static_cast<float>(value);
}

float ConfigReader::positive_float_or_zero(std::string_view key) {
  const std::string name = full(key);
  return file_.float_value(name, 0.0) == 0.0 ? 0.0F : positive_float(key, 0.0);
}

std::string ConfigReader::text(std::string_view key, std::string_view otherwise) {
  return file_.string_value(full(key), otherwise);
}

void ConfigReader::refuse_others(std::span<const std::string_view> harmless) const {
  for (const std::string& key : file_.keys()) {
    if (!key.starts_with(prefix_) || read_.contains(key)) continue;
    const std::string_view rest = std::string_view(key).substr(prefix_.size());
    if (std::find(harmless.begin(), harmless.end(), rest) != harmless.end()) continue;
    const std::optional<GgufFile::Value> value = file_.scalar(key);
    if (!value || !neutral(*value))
      unsupported("metadata key " + printable(key) + " asks for a feature that is not supported");
  }
}

}  // namespace pykv
