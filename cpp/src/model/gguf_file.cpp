#include <algorithm>
#include <numeric>

#include "model/gguf_parts.h"
#include "model/gguf_value.h"
#include "model/printable.h"
#include "pykv/errors.h"
#include "pykv/gguf.h"

namespace pykv {

using gguf::Entry;
using gguf::Kind;
using gguf::load;
using gguf::load_signed;
using gguf::load_string;
using gguf::load_unsigned;

struct GgufFile::Impl {
  std::string path;
  std::vector<std::unique_ptr<gguf::Part>> parts;
  std::vector<Tensor> tensors;         // of all parts
  std::vector<std::uint32_t> by_name;  // into tensors, sorted by name

  explicit Impl(const std::string& name) : path(name), parts(gguf::open_parts(name)) {
    for (const auto& part : parts)
      std::move(part->index.tensors.begin(), part->index.tensors.end(), std::back_inserter(tensors));
    by_name.resize(tensors.size());
    std::iota(by_name.begin(), by_name.end(), 0U);
    std::sort(by_name.begin(), by_name.end(),
              [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
    for (std::size_t i = 1; i < by_name.size(); ++i)
      if (tensors[by_name[i - 1]].name == tensors[by_name[i]].name)
        throw CorruptModel("[GgufFile.open] " + printable(path, 4096) + ": tensor " +
                           printable(tensors[by_name[i]].name) +
                           " is in two parts of the model; download it again");
  }

  const gguf::Index& index() const { return parts.front()->index; }
  const Entry* find(std::string_view key) const { return gguf::find_entry(index(), key); }

  [[noreturn]] void fail(const char* method, std::string_view key, const std::string& problem) const {
    throw CorruptModel("[GgufFile." + std::string(method) + "] " + printable(path, 4096) + ": metadata key " +
                       printable(key) + " " + problem);
  }
  [[noreturn]] void fail_missing(const char* method, std::string_view key) const {
    fail(method, key, "is missing; this is not a complete model file");
  }
  [[noreturn]] void fail_kind(const char* method, const Entry& entry, const char* wanted) const {
    std::string is = gguf::kind_name(entry.kind);
    if (entry.kind == Kind::array) is += " of " + std::string(gguf::kind_name(entry.element));
    fail(method, entry.key, "is of type " + is + ", expected " + wanted + "; convert the model again");
  }

  const Entry& array(const char* method, std::string_view key) const {
    const Entry* entry = find(key);
    if (entry == nullptr) fail_missing(method, key);
    if (entry->kind != Kind::array) fail_kind(method, *entry, "an array");
    if (entry->count > gguf::kMaxArrayElements)
      fail(method, key,
           "has " + std::to_string(entry->count) + " elements, the limit is " +
               std::to_string(gguf::kMaxArrayElements));
    return *entry;
  }
};

GgufFile::GgufFile(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
GgufFile::~GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;

const std::string& GgufFile::path() const { return impl_->path; }
std::uint32_t GgufFile::version() const { return impl_->index().version; }

std::uint64_t GgufFile::size() const {
  std::uint64_t total = 0;
  for (const auto& part : impl_->parts) total += part->file.bytes().size();
  return total;
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> out;
  out.reserve(impl_->index().entries.size());
  for (const Entry& entry : impl_->index().entries) out.emplace_back(entry.key);
  return out;
}

bool GgufFile::has(std::string_view key) const { return impl_->find(key) != nullptr; }

std::optional<GgufFile::Value> GgufFile::scalar(std::string_view key) const {
  const Entry* entry = impl_->find(key);
  if (entry == nullptr || entry->kind == Kind::array) return std::nullopt;
  if (const auto value = load_unsigned(entry->kind, entry->data)) return Value(*value);
  if (const auto value = load_signed(entry->kind, entry->data)) return Value(*value);
  switch (entry->kind) {
    case Kind::f32:
      return Value(static_cast<double>(load<float>(entry->data)));
    case Kind::f64:
      return Value(load<double>(entry->data));
    case Kind::boolean:
      return Value(load<std::uint8_t>(entry->data) != 0);
    default:
      return Value(std::string(load_string(entry->data)));
  }
}

std::uint64_t GgufFile::unsigned_value(std::string_view key) const {
  const Entry* entry = impl_->find(key);
  if (entry == nullptr) impl_->fail_missing("unsigned_value", key);
  if (const auto value = load_unsigned(entry->kind, entry->data)) return *value;
  const auto value = load_signed(entry->kind, entry->data);
  if (!value) impl_->fail_kind("unsigned_value", *entry, "an integer");
  if (*value < 0)
    impl_->fail("unsigned_value", key, "is " + std::to_string(*value) + ", but must not be negative");
  return static_cast<std::uint64_t>(*value);
}

std::uint64_t GgufFile::unsigned_value(std::string_view key, std::uint64_t otherwise) const {
  return has(key) ? unsigned_value(key) : otherwise;
}

double GgufFile::float_value(std::string_view key, double otherwise) const {
  const Entry* entry = impl_->find(key);
  if (entry == nullptr) return otherwise;
  if (entry->kind == Kind::f32) return static_cast<double>(load<float>(entry->data));
  if (entry->kind == Kind::f64) return load<double>(entry->data);
  impl_->fail_kind("float_value", *entry, "a float");
}

std::string GgufFile::string_value(std::string_view key) const {
  const Entry* entry = impl_->find(key);
  if (entry == nullptr) impl_->fail_missing("string_value", key);
  if (entry->kind != Kind::string) impl_->fail_kind("string_value", *entry, "a string");
  return std::string(load_string(entry->data));
}

std::string GgufFile::string_value(std::string_view key, std::string_view otherwise) const {
  return has(key) ? string_value(key) : std::string(otherwise);
}

std::optional<std::uint64_t> GgufFile::array_size(std::string_view key) const {
  const Entry* entry = impl_->find(key);
  if (entry == nullptr || entry->kind != Kind::array) return std::nullopt;
  return entry->count;
}

std::vector<std::string_view> GgufFile::string_array(std::string_view key) const {
  const Entry& entry = impl_->array("string_array", key);
  if (entry.element != Kind::string) impl_->fail_kind("string_array", entry, "an array of strings");
  std::vector<std::string_view> out;
  out.reserve(entry.count);
  const std::byte* at = entry.data;
  for (std::uint64_t i = 0; i < entry.count; ++i) {
    out.push_back(load_string(at));
    at += sizeof(std::uint64_t) + out.back().size();
  }
  return out;
}

std::vector<std::int64_t> GgufFile::integer_array(std::string_view key) const {
  const Entry& entry = impl_->array("integer_array", key);
  std::vector<std::int64_t> out;
  out.reserve(entry.count);
  for (std::uint64_t i = 0; i < entry.count; ++i) {
    const std::byte* at = entry.data + i * gguf::kind_bytes(entry.element);
    if (entry.element == Kind::boolean) {
      out.push_back(load<std::uint8_t>(at) != 0 ? 1 : 0);
    } else if (const auto value = load_signed(entry.element, at)) {
      out.push_back(*value);
    } else {
      const auto positive = load_unsigned(entry.element, at);
      if (!positive) impl_->fail_kind("integer_array", entry, "an array of integers");
      if (*positive > static_cast<std::uint64_t>(INT64_MAX))
        impl_->fail("integer_array", key, "holds " + std::to_string(*positive) + ", the limit is 2^63 - 1");
      out.push_back(static_cast<std::int64_t>(*positive));
    }
  }
  return out;
}

std::vector<float> GgufFile::float_array(std::string_view key) const {
  const Entry& entry = impl_->array("float_array", key);
  if (entry.element != Kind::f32 && entry.element != Kind::f64)
    impl_->fail_kind("float_array", entry, "an array of floats");
  std::vector<float> out;
  out.reserve(entry.count);
  for (std::uint64_t i = 0; i < entry.count; ++i) {
    const std::byte* at = entry.data + i * gguf::kind_bytes(entry.element);
    out.push_back(entry.element == Kind::f32 ? load<float>(at) : static_cast<float>(load<double>(at)));
  }
  return out;
}

const std::vector<GgufFile::Tensor>& GgufFile::tensors() const { return impl_->tensors; }

const GgufFile::Tensor* GgufFile::find_tensor(std::string_view name) const {
  const std::vector<Tensor>& tensors = impl_->tensors;
  const auto less = [&](std::uint32_t i, std::string_view n) { return tensors[i].name < n; };
  const auto at = std::lower_bound(impl_->by_name.begin(), impl_->by_name.end(), name, less);
  if (at == impl_->by_name.end() || tensors[*at].name != name) return nullptr;
  return &tensors[*at];
}

void GgufFile::drop_pages() const {
  for (const auto& part : impl_->parts) part->file.drop_pages(part->file.bytes());
}

void GgufFile::drop_pages(std::span<const std::byte> bytes) const {
  for (const auto& part : impl_->parts) part->file.drop_pages(bytes);
}

}  // namespace pykv
