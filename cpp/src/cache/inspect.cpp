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

std::vector<Run> Cache::runs(SeqId seq, std::uint32_t pool) const {
  const auto lock = impl_->link->lock();
  const Impl::Sequence& sequence = impl_->find(seq, "runs");
  if (pool >= impl_->pools()) {
    throw InvalidArgument(where("runs") + "pool is " + std::to_string(pool) + ", the cache has " +
                          std::to_string(impl_->pools()));
  }
  std::vector<Run> runs;
  Impl::runs_of(sequence, pool).for_each({0, sequence.end()}, [&](const Run& run) { runs.push_back(run); });
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

// The tokens of a sequence in a window pool are its tokens from `kept_from` on.
void check_window(const Cache::Impl& cache, const Cache::Impl::Sequence& sequence, std::size_t index,
                  const std::string& name) {
  const WindowRuns& kept = sequence.windows[index];
  const auto positions = [](const RunList& runs, Pos from) {
    std::vector<Pos> out;
    runs.for_each({from, kMaxPos}, [&](const Run& run) {
      for (std::uint32_t i = 0; i < run.length; ++i) out.push_back(run.first + static_cast<Pos>(i));
    });
    return out;
  };
  require(positions(kept.runs, 0) == positions(sequence.runs, kept.kept_from),
          name + " has other tokens in a window pool than from kept_from on");
  require(cache.continues(sequence.runs, sequence.windows),
          name + " has lost cells that its next token sees");
}

void check_pool(const Cache::Impl& cache, std::size_t pool) {
  cache.pool(pool).check_integrity("pool " + std::to_string(pool));
  const CellCounts& counts = cache.pool(pool).cells.counts();
  std::vector<bool> held(counts.capacity);
  for (const auto& [id, sequence] : cache.sequences) check_runs(Cache::Impl::runs_of(sequence, pool), held);
  require(static_cast<std::uint64_t>(std::count(held.begin(), held.end(), true)) == counts.active,
          "active cells are not those of the sequences");
}

void check_sequence(const Cache::Impl& cache, SeqId id, const Cache::Impl::Sequence& sequence) {
  const std::size_t depth =
      sequence.announced ? sequence.announced->size() : static_cast<std::size_t>(sequence.exact_upto);
  const std::string name = "sequence " + std::to_string(id.value);
  require(cache.tree.depth(sequence.holder) == depth, name + " holds another depth than it should");
  check_exact(cache, sequence, name);
  require(sequence.windows.size() == cache.windows.size(), name + " has not one list for each window pool");
  for (std::size_t i = 0; i < sequence.windows.size(); ++i) check_window(cache, sequence, i, name);
}

// Every sequence with tokens has a state, which it, forks, an open step and points share.
void check_states(const Cache::Impl& cache) {
  cache.states.check_integrity();
  if (!cache.states.is_used()) return;
  std::uint64_t held = cache.points.counts().points, noted = 0;
  for (const auto& [id, sequence] : cache.sequences) {
    require(static_cast<bool>(sequence.state) == (sequence.end() > 0),
            "sequence " + std::to_string(id.value) + " has tokens and no state, or a state and no tokens");
    held += (sequence.state ? 1U : 0U) + (sequence.next_state ? 1U : 0U);
  }
  for (std::uint32_t slot = 0; slot < cache.states.counts().slots; ++slot)
    noted += cache.states.references(StateSlot{slot});
  require(held == noted,
          "states are held " + std::to_string(held) + " times, noted are " + std::to_string(noted));
}

}  // namespace

void Cache::check_integrity() const {
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  c.tree.check_integrity();
  c.points.check_integrity();
  check_states(c);
  std::uint64_t committed = 0;
  for (std::size_t pool = 0; pool < c.pools(); ++pool) {
    check_pool(c, pool);
    committed += c.pool(pool).committed_blocks() * c.pool(pool).layout.block_bytes();
  }
  committed += c.states.committed_bytes();
  require(c.config.pool_bytes == 0 || committed <= c.config.pool_bytes, "committed bytes exceed the budget");
  for (const auto& [id, sequence] : c.sequences) check_sequence(c, id, sequence);
  require(c.tree.counts().holders == c.sequences.size(), "holders of the tree do not match the sequences");
}

}  // namespace pykv
