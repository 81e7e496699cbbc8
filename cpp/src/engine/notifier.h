// Floor 5. A file descriptor that is readable while a signal is pending: eventfd on Linux,
// a pipe elsewhere. Any thread may signal or clear.
#pragma once

namespace pykv::engine {

class Notifier {
 public:
  Notifier();  // throws Error if the process has no descriptor left
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  void signal() noexcept;
  void clear() noexcept;
  int fd() const { return read_end_; }

 private:
  int read_end_ = -1;
  int write_end_ = -1;  // the same descriptor with eventfd
};

}  // namespace pykv::engine
