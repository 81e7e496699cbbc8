// Floor 1, internal. A sequence of small values that grows and shrinks at both ends, splits
// and joins at the cost of the shorter part, and always lies in one piece.
//
// Costs are amortized: room at either end grows by a share of the size when it runs out,
// and is given back when it is out of proportion.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace pykv {

template <class T>
class Strip {
  static_assert(std::is_trivially_copyable_v<T>);  // moving values cannot fail

 public:
  std::span<T> view() { return std::span(items_).subspan(room_); }
  std::span<const T> view() const { return std::span(items_).subspan(room_); }
  std::size_t size() const { return items_.size() - room_; }

  void append(std::span<const T> more) {
    reserve_back(more.size());
    items_.insert(items_.end(), more.begin(), more.end());
  }
  void reserve_back(std::size_t more) {
    const std::size_t wanted = items_.size() + more;
    if (wanted > items_.capacity()) items_.reserve(std::max(wanted, 2 * items_.size()));
  }
  void drop_front(std::size_t count) noexcept {
    room_ += count;
    tidy();
  }
  void drop_back(std::size_t count) noexcept {
    items_.resize(items_.size() - count);
    tidy();
  }

  // Splitting and joining are done in two steps each; only the first can fail.
  Strip shorter_part(std::size_t count) const {  // of the first `count` values and the others
    Strip part;
    part.append(is_front_shorter(count) ? view().first(count) : view().subspan(count));
    return part;
  }
  Strip take_front(std::size_t count, Strip shorter_part) noexcept {
    if (is_front_shorter(count)) {
      drop_front(count);
      return shorter_part;
    }
    drop_back(size() - count);
    return std::exchange(*this, std::move(shorter_part));
  }
  void reserve_join(Strip& front) {
    if (front.size() < size())
      reserve_front(front.size());
    else
      front.reserve_back(size());
  }
  void join(Strip&& front) noexcept {
    if (front.size() < size()) {
      room_ -= front.size();
      std::copy_n(front.view().begin(), front.size(), view().begin());
    } else {
      front.items_.insert(front.items_.end(), view().begin(), view().end());
      *this = std::move(front);
    }
  }

 private:
  bool is_front_shorter(std::size_t count) const { return count <= size() / 2; }

  void reserve_front(std::size_t more) {
    if (more <= room_) return;
    // Not so much that the next drop_front() would find it out of proportion.
    const std::size_t room = more + (size() + more) / 4;
    std::vector<T> wider;
    wider.reserve(room + size());
    wider.resize(room);
    wider.insert(wider.end(), view().begin(), view().end());
    items_ = std::move(wider);
    room_ = room;
  }

  void tidy() noexcept {
    if (room_ > items_.size() / 2) {
      items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(room_));
      room_ = 0;
    }
    if (items_.size() < items_.capacity() / 4) items_.shrink_to_fit();
  }

  std::vector<T> items_;
  std::size_t room_ = 0;  // leading items that are not part of it; at most half
};

}  // namespace pykv
