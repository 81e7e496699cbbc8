// Floor 3, private. A change of a sequence's runs that takes back what is no longer exact.
//
// What can fail is done by the constructor; apply() cannot. Without apply() nothing has
// changed, so that other work which may fail fits in between.
#pragma once

#include <utility>

#include "cache/cache_impl.h"

namespace pykv {

class Edit {
 public:
  // The sequence's tokens below `exact` will stay as they are; behind them nothing will be
  // exact any more.
  Edit(Cache::Impl& cache, Cache::Impl::Sequence& sequence, Pos exact)
      : Edit(cache, sequence, sequence, std::min(exact, sequence.exact_upto)) {}

  // The sequence will have the first `exact` tokens of `source`, which are exact there.
  Edit(Cache::Impl& cache, Cache::Impl::Sequence& sequence, const Cache::Impl::Sequence& source, Pos exact)
      : cache_(cache), sequence_(sequence), holder_(cache.tree.copy(source.holder)), exact_(exact) {
    try {
      const auto depth = static_cast<std::uint32_t>(exact);
      if (depth < cache.tree.depth(holder_)) cache.tree.rewind(holder_, depth, cache.now());
    } catch (...) {
      cache.tree.detach(holder_, cache.now());
      throw;
    }
  }

  // Gives up the new place in the tree, or the old one, and with it what was announced.
  ~Edit() { cache_.tree.detach(holder_, cache_.now(), forgotten_); }
  Edit(const Edit&) = delete;
  Edit& operator=(const Edit&) = delete;

  void apply(RunList runs, std::vector<WindowRuns> windows, StateRef state = {}) noexcept {
    sequence_.announced.reset();
    std::swap(sequence_.holder, holder_);
    sequence_.exact_upto = exact_;
    sequence_.published_from = kMaxPos;
    sequence_.runs = std::move(runs);
    sequence_.windows = std::move(windows);
    sequence_.state = std::move(state);
    cache_.touch();
  }

  // The last `tokens` exact tokens that the sequence had do not become idle if only it had them.
  void forget(std::uint32_t tokens) { forgotten_ = tokens; }

 private:
  Cache::Impl& cache_;
  Cache::Impl::Sequence& sequence_;
  PrefixTree::HolderId holder_;
  Pos exact_;
  std::uint32_t forgotten_ = 0;
};

}  // namespace pykv
