#include "engine/notifier.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "pykv/errors.h"

#ifdef __linux__
#include <sys/eventfd.h>
#endif

namespace pykv::engine {

namespace {

[[noreturn]] void fail() {
  throw Error(std::string("[Engine] cannot make the notification descriptor: ") + std::strerror(errno) +
              "; close some files or raise the limit (ulimit -n)");
}

}  // namespace

#ifdef __linux__

Notifier::Notifier() {
  read_end_ = write_end_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (read_end_ < 0) fail();
}

#else

Notifier::Notifier() {
  int ends[2];
  if (::pipe(ends) != 0) fail();
  read_end_ = ends[0];
  write_end_ = ends[1];
  for (const int end : ends) {
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
    ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
}

#endif

Notifier::~Notifier() {
  ::close(read_end_);
  if (write_end_ != read_end_) ::close(write_end_);
}

void Notifier::signal() noexcept {
  const std::uint64_t one = 1;
  // A full pipe or counter is readable already, which is all that is asked for.
  while (::write(write_end_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Notifier::clear() noexcept {
  std::uint64_t sink[16];
  for (;;) {
    const ::ssize_t got = ::read(read_end_, sink, sizeof sink);
    if (got < 0 && errno == EINTR) continue;
    if (got < static_cast<::ssize_t>(sizeof sink)) return;
  }
}

}  // namespace pykv::engine
