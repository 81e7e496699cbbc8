#include "core/birthplace.h"

#include <pthread.h>

#include <atomic>

namespace pykv {
namespace {

std::atomic<std::uint32_t> forks{0};  // between the first process and this one

}  // namespace

Birthplace::Birthplace() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(registered);  // without memory for it a child is as unprotected as before
  forks_ = forks.load(std::memory_order_relaxed);
}

bool Birthplace::left() const noexcept { return forks_ != forks.load(std::memory_order_relaxed); }

}  // namespace pykv
