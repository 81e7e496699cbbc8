// Floor 1. Whether an object is used in the process that made it. A forked child has the
// memory but none of the threads, and locks as they happened to be: an object with either
// refuses to be used there, and is not destroyed but left alone.
#pragma once

#include <cstdint>

namespace pykv {

class Birthplace {
 public:
  Birthplace();                // here
  bool left() const noexcept;  // one load; no system call

 private:
  std::uint32_t forks_;
};

}  // namespace pykv
