#include "model/gguf_parts.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "model/gguf_value.h"
#include "model/printable.h"
#include "pykv/errors.h"

namespace pykv::gguf {
namespace {

// What a part says of itself.
struct Split {
  std::uint64_t number = 0;  // from 0
  std::uint64_t count = 1;
  std::uint64_t tensors = 0;  // of all parts
};

constexpr std::uint64_t kMaxParts = 1024;

[[noreturn]] void fail(const Part& part, const std::string& problem) {
  throw CorruptModel("[GgufFile.open] " + printable(part.path, 4096) + " " + problem);
}

std::optional<std::uint64_t> number(const Part& part, std::string_view key) {
  const Entry* entry = find_entry(part.index, key);
  if (entry == nullptr) return std::nullopt;
  if (const auto value = load_unsigned(entry->kind, entry->data)) return value;
  const auto value = load_signed(entry->kind, entry->data);
  if (!value || *value < 0) fail(part, "has a metadata key " + printable(key) + " that is no count");
  return static_cast<std::uint64_t>(*value);
}

Split read_split(const Part& part) {
  Split split;
  split.count = number(part, "split.count").value_or(1);
  if (split.count <= 1) return {};
  const auto index = number(part, "split.no");
  const auto tensors = number(part, "split.tensors.count");
  if (split.count > kMaxParts || !index || *index >= split.count || !tensors)
    fail(part, "has metadata keys split.* that do not fit together; download the model again");
  split.number = *index;
  split.tensors = *tensors;
  return split;
}

// "-00002-of-00003.gguf" for part 1 of 3.
std::string suffix(std::uint64_t number, std::uint64_t count) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "-%05llu-of-%05llu.gguf",
                static_cast<unsigned long long>(number + 1), static_cast<unsigned long long>(count));
  return text.data();
}

std::string place(std::uint64_t number, std::uint64_t count) {
  return "part " + std::to_string(number + 1) + " of " + std::to_string(count);
}

// The other parts' common name, without suffix.
std::string stem(const Part& part, const Split& split) {
  const std::string expected = suffix(split.number, split.count);
  if (!part.path.ends_with(expected))
    fail(part, "is " + place(split.number, split.count) + " of a split model, but its name does not end in " +
                   expected + ", so the other parts cannot be found; give them their original names");
  return part.path.substr(0, part.path.size() - expected.size());
}

std::unique_ptr<Part> open_other(const std::string& path, std::uint64_t number, const Split& split) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw Error("[GgufFile.open] " + printable(path, 4096) + " is missing, " + place(number, split.count) +
                " of a split model; download it into the folder of the others");
  auto part = std::make_unique<Part>(path);
  const Split own = read_split(*part);
  if (own.number != number || own.count != split.count || own.tensors != split.tensors)
    fail(*part, "does not belong with the other parts: it says it is " + place(own.number, own.count) +
                    " of a model with " + std::to_string(own.tensors) + " tensors, expected is " +
                    place(number, split.count) + " of one with " + std::to_string(split.tensors) +
                    "; download the model again");
  return part;
}

}  // namespace

std::vector<std::unique_ptr<Part>> open_parts(const std::string& path) {
  auto given = std::make_unique<Part>(path);
  const Split split = read_split(*given);
  std::vector<std::unique_ptr<Part>> parts;
  if (split.count == 1) {
    parts.push_back(std::move(given));
    return parts;
  }
  const std::string name = stem(*given, split);
  std::uint64_t tensors = 0;
  for (std::uint64_t i = 0; i < split.count; ++i) {
    parts.push_back(i == split.number ? std::move(given)
                                      : open_other(name + suffix(i, split.count), i, split));
    tensors += parts.back()->index.tensors.size();
  }
  if (tensors != split.tensors)
    fail(*parts.front(), "and the other parts have " + std::to_string(tensors) +
                             " tensors, the metadata tells of " + std::to_string(split.tensors) +
                             "; download the model again");
  return parts;
}

}  // namespace pykv::gguf
