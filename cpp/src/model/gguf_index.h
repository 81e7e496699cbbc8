// Floor 4. Table of contents of a GGUF file: where each metadata value and each tensor
// lies. parse() has checked everything; the rest of the reader follows it blindly.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf_format.h"
#include "pykv/gguf.h"

namespace pykv::gguf {

struct Entry {
  std::string_view key;             // into the file
  Kind kind = Kind::u8;             // of the value
  Kind element = Kind::u8;          // arrays: of the elements
  std::uint64_t count = 0;          // arrays: elements
  const std::byte* data = nullptr;  // the scalar (strings: the length), or the first element
};

struct Index {
  std::uint32_t version = 0;
  std::vector<Entry> entries;             // file order
  std::vector<std::uint32_t> by_key;      // into entries, sorted by key; keys are unique
  std::vector<GgufFile::Tensor> tensors;  // file order; names are unique
};

// Throws CorruptModel or UnsupportedModel. `path` is for messages. The result holds
// views into `file`.
Index parse(std::span<const std::byte> file, const std::string& path);

const Entry* find_entry(const Index& index, std::string_view key);  // nullptr: absent

}  // namespace pykv::gguf
