// Floor 1. One exception family. A message starts with "[Class.method]" and says
// the value, the limit and the way out. Nothing in the library prints or aborts;
// a throw leaves the object it came from as it was before the call.
#pragma once

#include <stdexcept>
#include <string>

namespace pykv {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument is out of its documented range (Python: also a ValueError).
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// The pool has not enough free or reclaimable cells (Python: also MemoryError).
class OutOfCells : public Error {
 public:
  using Error::Error;
};

// The byte budget or the machine has no more memory (Python: also MemoryError).
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// The cache changed between plan() and commit(); plan again.
class StalePlan : public Error {
 public:
  using Error::Error;
};

// The model file is damaged or hostile: counts, sizes or offsets do not add up.
class CorruptModel : public Error {
 public:
  using Error::Error;
};

// The model, layer kind or type is valid but not supported by this build.
class UnsupportedModel : public Error {
 public:
  using Error::Error;
};

// The operation exists but not for this object or layer table; the message names what is
// possible.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// A queue or limit is full; try again later (HTTP 429/503).
class Busy : public Error {
 public:
  using Error::Error;
};

// An invariant is broken; thrown by check_integrity() only.
class IntegrityError : public Error {
 public:
  using Error::Error;
};

}  // namespace pykv
