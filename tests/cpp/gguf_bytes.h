// Writes GGUF headers by hand, also wrong ones.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace gguf_bytes {

class Writer {
 public:
  explicit Writer(std::uint64_t tensors = 0, std::uint64_t keys = 0, std::uint32_t version = 3) {
    bytes_ = "GGUF";
    u32(version).u64(tensors).u64(keys);
  }
  template <class T>
  Writer& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Writer& u8(std::uint8_t value) { return number(value); }
  Writer& u32(std::uint32_t value) { return number(value); }
  Writer& u64(std::uint64_t value) { return number(value); }
  Writer& text(const std::string& value) {
    u64(value.size());
    bytes_ += value;
    return *this;
  }
  Writer& key(const std::string& name, std::uint32_t kind) { return text(name).u32(kind); }
  Writer& tensor(const std::string& name, std::uint64_t cols, std::uint64_t rows, std::uint32_t type,
                 std::uint64_t offset) {
    return text(name).u32(2).u64(cols).u64(rows).u32(type).u64(offset);
  }
  Writer& pad_to(std::size_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_ += '\0';
    return *this;
  }
  Writer& raw(const std::string& value) {
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// A file of the given content that is removed with the object.
class TempFile {
 public:
  explicit TempFile(const std::string& content) {
    path_ = (std::filesystem::temp_directory_path() / "pykv-test-XXXXXX").string();
    const int fd = ::mkstemp(path_.data());
    if (fd >= 0) ::close(fd);
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gguf_bytes
