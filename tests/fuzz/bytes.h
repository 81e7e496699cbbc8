// What a fuzzer gives, read as numbers; behind the end everything is 0.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace fuzz {

class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t next() {
    if (rest_.empty()) return 0;
    const std::uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  std::uint32_t below(std::uint32_t limit) { return limit == 0 ? 0 : next() % limit; }

 private:
  std::span<const std::uint8_t> rest_;
};

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

}  // namespace fuzz
