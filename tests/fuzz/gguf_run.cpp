#include "gguf_run.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "bytes.h"
#include "pykv/errors.h"
#include "pykv/gguf.h"
#include "pykv/model.h"

namespace fuzz {

using namespace pykv;

namespace {

// A file that has no name and ends with the object.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> bytes) : fd_(::memfd_create("gguf", MFD_CLOEXEC)) {
    require(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<::ssize_t>(bytes.size()),
            "no memory for a file");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// What `read` throws of pykv's own is an answer.
template <class Read>
void answered(Read read) {
  try {
    read();
  } catch (const Error&) {
  }
}

void read_values(const GgufFile& file) {
  for (const std::string& key : file.keys()) {
    require(file.has(key), "a key that is listed is not there");
    answered([&] { static_cast<void>(file.scalar(key)); });
    answered([&] { static_cast<void>(file.unsigned_value(key)); });
    answered([&] { static_cast<void>(file.float_value(key, 0.0)); });
    answered([&] { static_cast<void>(file.string_value(key)); });
    answered([&] {
      std::size_t bytes = 0;
      for (const std::string_view text : file.string_array(key))
        for (const char c : text) bytes += static_cast<unsigned char>(c);  // looks at every byte
      require(bytes <= 255 * file.size(), "strings of an array lie outside the file");
    });
    answered([&] { static_cast<void>(file.integer_array(key)); });
    answered([&] { static_cast<void>(file.float_array(key)); });
  }
}

void read_tensors(const GgufFile& file) {
  for (const GgufFile::Tensor& tensor : file.tensors()) {
    require(file.find_tensor(tensor.name) == &tensor, "a tensor that is listed is not found");
    std::size_t sum = 0;
    for (const std::byte b : tensor.bytes) sum += static_cast<std::size_t>(b);
    require(sum <= 255 * file.size(), "a tensor lies outside the file");
  }
}

}  // namespace

void run_gguf(std::span<const std::uint8_t> bytes) {
  const MemoryFile memory(bytes);
  answered([&] {
    const GgufFile file(memory.path());
    read_values(file);
    read_tensors(file);
    answered([&] { static_cast<void>(read_model_config(file)); });
  });
}

}  // namespace fuzz
