// Looking in: bounds, runs, and the check of every invariant.
#include <algorithm>
#include <bit>

#include "cache/cache_impl.h"

namespace pykv {

Span Cache::bounds(SeqId seq) const {
  const auto lock = impl_->link->lock();
  return impl_->find(seq, "bounds").bounds();
}

Pos Cache::exact_upto(SeqId seq) const {
  const auto lock = impl_->link->lock();
  return impl_->find(seq, "exact_upto").exact_upto;
}

std::vector<Run> Cache::runs(SeqId seq) const {
  const auto lock = impl_->link->lock();
  const Impl::Sequence& sequence = impl_->find(seq, "runs");
  std::vector<Run> runs;
  sequence.runs.for_each({0, sequence.end()}, [&](const Run& run) { runs.push_back(run); });
  return runs;
}

std::vector<SeqId> Cache::sequences() const {
  const auto lock = impl_->link->lock();
  std::vector<SeqId> ids;
  ids.reserve(impl_->sequences.size());
  for (const auto& [id, sequence] : impl_->sequences) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::uint32_t Cache::shared_cells(SeqId seq) const {
  const auto lock = impl_->link->lock();
  return impl_->find(seq, "shared_cells").runs.shared_cells();
}

std::vector<PrefixTree::NodeView> Cache::prefix_nodes() const {
  const auto lock = impl_->link->lock();
  return impl_->tree.nodes();
}

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw IntegrityError(where("check_integrity") + what);
}

// Marks the cells of `runs` as held.
void check_runs(const RunList& runs, std::vector<bool>& held) {
  runs.check_integrity();
  runs.for_each({0, runs.end()}, [&](const Run& run) {
    for (std::uint32_t i = 0; i < run.length; ++i) held.at(run.cell + i) = true;
  });
}

// Exact tokens lie where the tree says, without gaps and as they were stored.
void check_exact(const Cache::Impl& cache, const Cache::Impl::Sequence& sequence, const std::string& name) {
  std::vector<Run> own;
  Pos next = 0;
  sequence.runs.for_each({0, sequence.exact_upto}, [&](const Run& run) {
    require(run.first == next && run.rotation == 0, name + " has a gap or a rotation before exact_upto");
    next = run.end();
    own.push_back(run);
  });
  require(next == sequence.exact_upto, name + " ends before exact_upto");
  const auto path = cache.tree.path_runs(sequence.holder, 0, static_cast<std::uint32_t>(sequence.exact_upto));
  const auto cells = [](const std::vector<Run>& runs) {
    std::vector<CellIndex> out;
    for (const Run& run : runs) {
      for (std::uint32_t i = 0; i < run.length; ++i) out.push_back(run.cell + i);
    }
    return out;
  };
  require(cells(own) == cells(path), name + " has exact tokens in other cells than the tree");
}

void check_blocks(const Cache::Impl& cache) {
  std::uint64_t committed = 0, free_committed = 0;
  for (BlockIndex block = 0; block < cache.cells.block_count(); ++block) {
    if (cache.is_committed(block)) {
      ++committed;
      free_committed += cache.cells.block_is_free(block) ? 1 : 0;
    } else {
      require(cache.cells.block_is_free(block),
              "block " + std::to_string(block) + " is held but not committed");
    }
  }
  require(committed == cache.committed_blocks, "committed blocks do not add up");
  require(free_committed == cache.free_committed_blocks(), "free committed blocks do not add up");
  require(cache.config.pool_bytes == 0 || committed * cache.layout.block_bytes() <= cache.config.pool_bytes,
          "committed bytes exceed the budget");
}

}  // namespace

void Cache::check_integrity() const {
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  c.cells.check_integrity();
  c.tree.check_integrity();
  check_blocks(c);
  std::vector<bool> held(c.cells.counts().capacity);
  for (const auto& [id, sequence] : c.sequences) {
    check_runs(sequence.runs, held);
    const std::size_t depth =
        sequence.announced ? sequence.announced->size() : static_cast<std::size_t>(sequence.exact_upto);
    const std::string name = "sequence " + std::to_string(id.value);
    require(c.tree.depth(sequence.holder) == depth, name + " holds another depth than it should");
    check_exact(c, sequence, name);
  }
  require(c.tree.counts().holders == c.sequences.size(), "holders of the tree do not match the sequences");
  const CellCounts& counts = c.cells.counts();
  require(static_cast<std::uint64_t>(std::count(held.begin(), held.end(), true)) == counts.active,
          "active cells are not those of the sequences");
  require(counts.active + counts.idle + counts.free == counts.capacity, "cell states do not add up");
}

}  // namespace pykv
