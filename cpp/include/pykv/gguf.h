// Floor 4. Bounded reader of GGUF version 2 and 3 files, whole or split into parts (any part
// names the model; all must lie in its folder). Files are mapped read-only;
// every count, size, type, offset and length is checked against the file before use, so
// that a hostile file costs an error message, at most 64 MiB beyond the mapping and well
// under a second. Throws CorruptModel (with the byte offset), UnsupportedModel, and Error
// for files that cannot be opened. The file must not be shortened by others while it is
// open: reading past the new end of a mapping raises a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pykv/dtype.h"

namespace pykv {

class GgufFile {
 public:
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;

  const std::string& path() const;
  std::uint64_t size() const;  // bytes of all parts
  std::uint32_t version() const;

  // --- metadata ----------------------------------------------------------------
  using Value = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;
  std::vector<std::string> keys() const;
  bool has(std::string_view key) const;
  std::optional<Value> scalar(std::string_view key) const;  // nullopt: absent or array
  // Typed access; throw CorruptModel if absent (without a default) or of another kind.
  std::uint64_t unsigned_value(std::string_view key) const;
  std::uint64_t unsigned_value(std::string_view key, std::uint64_t otherwise) const;
  double float_value(std::string_view key, double otherwise) const;
  std::string string_value(std::string_view key) const;
  std::string string_value(std::string_view key, std::string_view otherwise) const;
  std::optional<std::uint64_t> array_size(std::string_view key) const;
  // Whole arrays of at most 2^20 elements; views into the mapping, valid while the file
  // object lives.
  std::vector<std::string_view> string_array(std::string_view key) const;
  std::vector<std::int64_t> integer_array(std::string_view key) const;  // booleans: 0 and 1
  std::vector<float> float_array(std::string_view key) const;

  // --- tensors -----------------------------------------------------------------
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;  // GGUF order: shape[0] is the row length
    std::uint32_t type_id = 0;         // GGUF number
    std::string type_name;             // "Q4_1", or "type 77" if unknown
    std::optional<DType> type;         // nullopt: no DType for it in this build
    std::span<const std::byte> bytes;  // inside the mapping; empty if type is nullopt
  };
  const std::vector<Tensor>& tensors() const;
  const Tensor* find_tensor(std::string_view name) const;
  // Tells the system that mapped pages are not needed any more (after repacking): all, or
  // those of a tensor.
  void drop_pages() const;
  void drop_pages(std::span<const std::byte> bytes) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pykv
