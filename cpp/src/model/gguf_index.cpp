#include "model/gguf_index.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "model/gguf_cursor.h"
#include "model/printable.h"
#include "pykv/errors.h"

namespace pykv::gguf {
namespace {

constexpr std::uint64_t kLeastEntryBytes = 8 + 1 + 4 + 1;           // key, type, value
constexpr std::uint64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, type, offset

void check_magic(std::span<const std::byte> file, const std::string& path) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<std::size_t>(file.size(), 4));
  if (start == "GGUF") return;
  throw CorruptModel("[GgufFile.open] " + printable(path, 4096) + " starts with " + printable(start) +
                     " instead of 'GGUF': not a GGUF file; give a .gguf file, or convert the model to GGUF");
}

std::uint32_t read_version(Cursor& cursor, const std::string& path) {
  const auto version = cursor.number<std::uint32_t>("format version");
  if (version == 2 || version == 3) return version;
  const std::string file = "[GgufFile.open] " + printable(path, 4096);
  if (version == 1)
    throw UnsupportedModel(file + " has GGUF version 1, supported are 2 and 3; convert the model again");
  // A small number in the upper half is a version written by a big-endian machine.
  if ((version & 0xffffU) == 0 && version != 0)
    throw UnsupportedModel(file + " is a big-endian GGUF file; convert it to little-endian");
  throw UnsupportedModel(file + " has GGUF version " + std::to_string(version) + ", supported are 2 and 3");
}

// Keys and tensor names are ASCII by the format; refusing the rest keeps them safe to show.
std::string_view read_name(Cursor& cursor, std::uint64_t max_bytes, const char* what) {
  const std::string_view name = cursor.string(max_bytes, what);
  const bool plain =
      !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
  if (!plain) cursor.fail(std::string(what) + " " + printable(name) + " is not printable ASCII text");
  return name;
}

Entry read_entry(Cursor& cursor, std::span<const std::byte> file) {
  Entry entry;
  entry.key = read_name(cursor, kMaxKeyBytes, "metadata key");
  entry.kind = cursor.read_kind("metadata value type");
  const std::uint64_t start = cursor.position();
  cursor.skip_value(entry.kind);
  entry.data = file.data() + start;
  if (entry.kind == Kind::array) {  // checked by skip_value: u32 element type, u64 count
    std::memcpy(&entry.element, entry.data, sizeof(entry.element));
    std::memcpy(&entry.count, entry.data + sizeof(entry.element), sizeof(entry.count));
    entry.data += sizeof(entry.element) + sizeof(entry.count);
  }
  return entry;
}

// Indices of `count` names in sorted order; fails on a repeated one.
template <class NameOf>
std::vector<std::uint32_t> sorted_unique(const Cursor& cursor, std::size_t count, const char* what,
                                         NameOf name) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return name(a) < name(b); });
  for (std::size_t i = 1; i < count; ++i)
    if (name(order[i - 1]) == name(order[i]))
      cursor.fail(std::string(what) + " " + printable(name(order[i])) + " occurs twice");
  return order;
}

std::uint64_t read_alignment(const Cursor& cursor, const Index& index) {
  for (const Entry& entry : index.entries) {
    if (entry.key != "general.alignment") continue;
    std::uint32_t value = 0;
    if (entry.kind == Kind::u32) std::memcpy(&value, entry.data, sizeof(value));
    const bool power_of_two = value != 0 && (value & (value - 1)) == 0;
    if (!power_of_two || value < kMinAlignment || value > kMaxAlignment)
      cursor.fail("general.alignment must be a uint32 power of two from " + std::to_string(kMinAlignment) +
                  " to " + std::to_string(kMaxAlignment) +
                  (entry.kind == Kind::u32 ? ", but is " + std::to_string(value)
                                           : ", but is a " + std::string(kind_name(entry.kind))));
    return value;
  }
  return kDefaultAlignment;
}

// Tensor as the header describes it; where its bytes lie is checked at the end.
struct Described {
  GgufFile::Tensor tensor;
  std::uint64_t offset = 0;  // from the start of the tensor data
  std::uint64_t size = 0;    // bytes; 0 if the type is unknown
};

std::uint64_t checked_elements(const Cursor& cursor, const GgufFile::Tensor& tensor) {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : tensor.shape) {
    if (extent == 0) cursor.fail("tensor " + printable(tensor.name) + " has a dimension of size 0");
    // With at most 8 bytes per element, the size in bytes cannot overflow then.
    if (extent > (std::uint64_t{1} << 60U) / elements)
      cursor.fail("tensor " + printable(tensor.name) + " has more than 2^60 elements");
    elements *= extent;
  }
  return elements;
}

Described read_tensor(Cursor& cursor) {
  Described out;
  GgufFile::Tensor& tensor = out.tensor;
  tensor.name = read_name(cursor, kMaxTensorNameBytes, "tensor name");
  const auto dimensions = cursor.number<std::uint32_t>("number of dimensions");
  if (dimensions == 0 || dimensions > kMaxDimensions)
    cursor.fail("tensor " + printable(tensor.name) + " has " + std::to_string(dimensions) +
                " dimensions, allowed are 1 to " + std::to_string(kMaxDimensions));
  for (std::uint32_t i = 0; i < dimensions; ++i)
    tensor.shape.push_back(cursor.number<std::uint64_t>("tensor dimension"));
  const std::uint64_t elements = checked_elements(cursor, tensor);
  tensor.type_id = cursor.number<std::uint32_t>("tensor type");
  out.offset = cursor.number<std::uint64_t>("tensor offset");
  const TensorType* type = find_tensor_type(tensor.type_id);
  if (type == nullptr) {
    tensor.type_name = "type " + std::to_string(tensor.type_id);
    return out;
  }
  tensor.type_name = type->name;
  tensor.type = type->type;
  if (tensor.shape[0] % type->block_elements != 0)
    cursor.fail("tensor " + printable(tensor.name) + " of type " + type->name + " has rows of " +
                std::to_string(tensor.shape[0]) + " elements, which is no multiple of " +
                std::to_string(type->block_elements));
  out.size = elements / type->block_elements * type->block_bytes;
  return out;
}

// Checks that every tensor lies inside `data` and that no two overlap; sets the views.
void place_tensors(const Cursor& cursor, std::span<const std::byte> data, std::uint64_t alignment,
                   std::vector<Described>& described) {
  std::vector<std::uint32_t> order(described.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return described[a].offset < described[b].offset; });
  std::uint64_t free_from = 0;
  const Described* previous = nullptr;
  for (const std::uint32_t i : order) {
    Described& item = described[i];
    const std::string name = "tensor " + printable(item.tensor.name);
    if (item.offset % alignment != 0)
      cursor.fail(name + " starts at data offset " + std::to_string(item.offset) +
                  ", which is no multiple of the alignment " + std::to_string(alignment));
    if (item.offset > data.size() || item.size > data.size() - item.offset)
      cursor.fail(name + " takes " + std::to_string(item.size) + " bytes from data offset " +
                  std::to_string(item.offset) + ", but the file has only " + std::to_string(data.size()) +
                  " bytes of tensor data");
    if (previous != nullptr && item.offset < free_from)
      cursor.fail(name + " overlaps tensor " + printable(previous->tensor.name));
    free_from = item.offset + item.size;
    previous = &item;
    if (item.tensor.type) item.tensor.bytes = data.subspan(item.offset, item.size);
  }
}

}  // namespace

Index parse(std::span<const std::byte> file, const std::string& path) {
  check_magic(file, path);
  Cursor cursor(file, path);
  cursor.number<std::uint32_t>("magic");
  Index index;
  index.version = read_version(cursor, path);
  const std::uint64_t tensors = cursor.count(kLeastTensorBytes, kMaxTensors, "number of tensors");
  const std::uint64_t keys = cursor.count(kLeastEntryBytes, kMaxKeys, "number of metadata keys");
  for (std::uint64_t i = 0; i < keys; ++i) index.entries.push_back(read_entry(cursor, file));
  index.by_key = sorted_unique(cursor, index.entries.size(), "metadata key",
                               [&](std::uint32_t i) { return index.entries[i].key; });
  const std::uint64_t alignment = read_alignment(cursor, index);

  std::vector<Described> described;
  for (std::uint64_t i = 0; i < tensors; ++i) described.push_back(read_tensor(cursor));
  const std::uint64_t header = cursor.position();
  const std::uint64_t start =
      std::min<std::uint64_t>(file.size(), (header + alignment - 1) / alignment * alignment);
  place_tensors(cursor, file.subspan(start), alignment, described);
  for (Described& item : described) index.tensors.push_back(std::move(item.tensor));
  sorted_unique(cursor, index.tensors.size(), "tensor",
                [&](std::uint32_t i) { return std::string_view(index.tensors[i].name); });
  return index;
}

const Entry* find_entry(const Index& index, std::string_view key) {
  const auto less = [&](std::uint32_t i, std::string_view k) { return index.entries[i].key < k; };
  const auto at = std::lower_bound(index.by_key.begin(), index.by_key.end(), key, less);
  if (at == index.by_key.end() || index.entries[*at].key != key) return nullptr;
  return &index.entries[*at];
}

}  // namespace pykv::gguf
