// Floor 4. A backend buffer that is destroyed with its owner.
#pragma once

#include <cstdint>
#include <utility>

#include "pykv/backend.h"

namespace pykv {

class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(Backend& backend, std::uint32_t rows, std::uint32_t width)
      : backend_(&backend), buffer_(backend.create_buffer(rows, width)), width_(width) {}
  RowBuffer(RowBuffer&& other) noexcept
      : backend_(std::exchange(other.backend_, nullptr)), buffer_(other.buffer_), width_(other.width_) {}
  RowBuffer& operator=(RowBuffer&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(buffer_, other.buffer_);
    std::swap(width_, other.width_);
    return *this;
  }
  ~RowBuffer() {
    if (backend_ != nullptr) backend_->destroy_buffer(buffer_);
  }

  // The first `count` rows.
  Rows rows(std::uint32_t count) const { return {buffer_, 0, count, width_}; }

 private:
  Backend* backend_ = nullptr;
  BufferId buffer_;
  std::uint32_t width_ = 0;
};

}  // namespace pykv
