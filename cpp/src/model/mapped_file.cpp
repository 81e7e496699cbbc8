#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <system_error>

#include "model/printable.h"
#include "pykv/errors.h"

#if defined(__has_feature)  // Clang
#define PYKV_ASAN __has_feature(address_sanitizer)
#else
#define PYKV_ASAN __SANITIZE_ADDRESS__  // GCC; undefined is 0
#endif
#if PYKV_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace pykv {
namespace {

struct Descriptor {
  int fd;
  explicit Descriptor(int value) : fd(value) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

std::string advice(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "; check the path, or download the model first";
    case EACCES:
    case EPERM:
      return "; make the file and its folders readable for this user";
    case EMFILE:
    case ENFILE:
      return "; raise the limit on open files (ulimit -n)";
    default:
      return "";
  }
}

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// The rest of the last page reads as zeros; for AddressSanitizer it is out of bounds.
void fence_tail([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::size_t size, bool fenced) {
#if PYKV_ASAN
  const std::size_t rest = (page_bytes() - size % page_bytes()) % page_bytes();
  if (fenced) {
    ASAN_POISON_MEMORY_REGION(data + size, rest);
  } else {
    ASAN_UNPOISON_MEMORY_REGION(data + size, rest);
  }
#else
  static_cast<void>(fenced);
#endif
}

[[noreturn]] void fail(const std::string& path, const char* action, int error) {
  throw Error("[GgufFile.open] cannot " + std::string(action) + " " + printable(path, 4096) + ": " +
              std::system_category().message(error) + advice(error));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    throw Error("[GgufFile.open] the path " + printable(path) +
                " is empty or contains a zero byte; give the path of a .gguf file");
  // Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) fail(path, "open", errno);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail(path, "examine", errno);
  if (S_ISDIR(status.st_mode))
    throw Error("[GgufFile.open] " + printable(path, 4096) +
                " is a directory; give the path of the .gguf file inside it");
  if (!S_ISREG(status.st_mode))
    throw Error("[GgufFile.open] " + printable(path, 4096) +
                " is not a regular file; save the model to disk and give the path of the .gguf file");
  if (status.st_size <= 0)
    throw CorruptModel("[GgufFile.open] " + printable(path, 4096) +
                       " is empty (0 bytes), probably an unfinished download; download it again");
  size_ = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) fail(path, "map", errno);
  data_ = static_cast<const std::byte*>(address);
  fence_tail(data_, size_, true);
}

MappedFile::~MappedFile() {
  fence_tail(data_, size_, false);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop_pages(std::span<const std::byte> part) const {
  const std::less_equal<> not_after;  // of any two pointers
  if (part.empty() || !not_after(data_, part.data()) || !not_after(part.data() + part.size(), data_ + size_))
    return;
  const auto begin = static_cast<std::size_t>(part.data() - data_) / page_bytes() * page_bytes();
  const auto end = static_cast<std::size_t>(part.data() - data_) + part.size();
  // Advice only: if it is refused, the pages go when memory gets short.
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace pykv
