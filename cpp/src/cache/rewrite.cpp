// K written anew for other positions: divided spans, and shifted ones with many rotations.
#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "cache/blocks.h"
#include "cache/edit.h"

namespace pykv {
namespace {

// With more rotations than this in one sequence attention turns each query so often that
// it pays to write K anew.
constexpr std::size_t kMaxRotations = 4;

constexpr CellIndex kCopy = std::numeric_limits<CellIndex>::max();

// In token order: K of cell from[i] moves by deltas[i] positions into cell to[i], which is
// from[i] itself, or kCopy until a cell is found.
struct Moves {
  std::vector<CellIndex> from, to;
  std::vector<Pos> deltas;
};

// Calls visit(token) with a run of length 1 for each token of `span`, in order.
template <class Visit>
void for_tokens(const RunList& runs, Span span, Visit visit) {
  runs.for_each(span, [&](const Run& run) {
    for (std::uint32_t i = 0; i < run.length; ++i)
      visit(Run{run.first + static_cast<Pos>(i), run.cell + i, 1, run.rotation});
  });
}

// How far K of the token is from position / divisor, for which it should be stored.
Pos distance(const Run& token, Pos divisor) { return token.first / divisor - (token.first - token.rotation); }

// The list must own its leaves in `span`.
Moves moves_of(const CellMap& cells, const RunList& runs, Span span, Pos divisor) {
  Moves moves;
  for_tokens(runs, span, [&](const Run& token) {
    const Pos delta = distance(token, divisor);
    if (delta == 0) return;
    const bool is_alone = cells.holders(token.cell) == 1 && !cells.in_tree(token.cell);
    moves.from.push_back(token.cell);
    moves.to.push_back(is_alone ? token.cell : kCopy);
    moves.deltas.push_back(delta);
  });
  return moves;
}

// `runs` with the tokens of `span` at position / divisor: in the cells of `moves`, without
// rotation, or where they are if K does not depend on positions.
RunList divided(const RunList& runs, Span span, Pos divisor, const Moves* moves) {
  RunList out = runs;
  out.truncate(span.begin);
  Run open{};
  std::size_t next = 0;
  for_tokens(runs, span, [&](Run token) {
    if (moves != nullptr) {
      if (distance(token, divisor) != 0) token.cell = moves->to[next++];
      token.rotation = 0;
    }
    token.first /= divisor;
    if (open.length > 0 && open.end() == token.first && open.cell + open.length == token.cell &&
        open.rotation == token.rotation) {
      ++open.length;
      return;
    }
    out.append(open, RunList::Hold::share);
    open = token;
  });
  out.append(open, RunList::Hold::share);
  out.insert(runs, {span.end, kMaxPos});
  return out;
}

// Allocates nothing: it is asked for after the edit, where nothing may fail.
bool has_many_rotations(const RunList& runs) {
  std::array<Pos, kMaxRotations + 1> distinct;
  std::size_t count = 0;
  runs.for_each({runs.begin(), runs.end()}, [&](const Run& run) {
    const auto end = distinct.begin() + static_cast<std::ptrdiff_t>(count);
    if (count < distinct.size() && std::find(distinct.begin(), end, run.rotation) == end)
      distinct[count++] = run.rotation;
  });
  return count > kMaxRotations;
}

}  // namespace

std::optional<Cache::Impl::Copies> Cache::Impl::take_copies(std::uint32_t count) {
  const CellRequest request{{}, count, std::nullopt};
  FoundCells found;
  CellMap& cells = base.cells;
  if (!cells.find({&request, 1}, found)) return std::nullopt;
  Copies copies{RunList(cells), {}};
  base.add_uncommitted(found.of(0), copies.to_commit);
  for (const CellSpan span : found.of(0)) {
    cells.take({}, span);
    try {
      copies.runs.append({copies.runs.end(), span.begin, span.length, 0}, RunList::Hold::adopt);
    } catch (...) {
      cells.drop_holder(span);
      throw;
    }
  }
  return copies;
}

bool Cache::Impl::divide(Sequence& sequence, Span span, Pos divisor, bool rotates) {
  Edit edit(*this, sequence, *sequence.runs.next(span.begin) / divisor);
  if (!rotates) {
    edit.apply(divided(sequence.runs, span, divisor, nullptr), {});
    return true;
  }
  sequence.runs.own(span);
  Moves moves = moves_of(base.cells, sequence.runs, span, divisor);
  const auto count = static_cast<std::uint32_t>(std::count(moves.to.begin(), moves.to.end(), kCopy));
  const std::optional<Copies> copies = take_copies(count);
  if (!copies) return false;
  std::vector<CellIndex> from, to;
  for_tokens(copies->runs, {0, copies->runs.end()}, [&](const Run& token) { to.push_back(token.cell); });
  for (std::size_t i = 0; i < moves.to.size(); ++i) {
    if (moves.to[i] != kCopy) continue;
    moves.to[i] = to[from.size()];
    from.push_back(moves.from[i]);
  }
  RunList runs = divided(sequence.runs, span, divisor, &moves);
  const std::vector<const RopeParams*> ropes = ropes_of_stored_k();
  FreshBlocks fresh(base, copies->to_commit);
  backend.copy_cells(base.id, from, to);
  backend.rewrite_k(base.id, moves.from, moves.to, moves.deltas, ropes);
  fresh.keep();
  edit.apply(std::move(runs), {});
  cells_copied += count;
  k_bytes_rewritten += moves.to.size() * k_bytes_per_cell();
  return true;
}

std::vector<const RopeParams*> Cache::Impl::ropes_of_stored_k() const {
  std::vector<const RopeParams*> ropes;
  for (std::uint32_t layer = 0; layer < config.layers.size(); ++layer)
    ropes.push_back(config.layers[layer].kv_from_layer ? nullptr : rope(layer));
  return ropes;
}

std::uint64_t Cache::Impl::k_bytes_per_cell() const {
  std::uint64_t bytes = 0;
  for (std::uint32_t layer = 0; layer < config.layers.size(); ++layer)
    if (!config.layers[layer].kv_from_layer)
      bytes +=
          std::uint64_t{base.layout.place(layer).kv_heads} * base.layout.place(layer).k.bytes / kBlockCells;
  return bytes;
}

void Cache::Impl::straighten(Sequence& sequence) noexcept {
  if (!windows.empty() || !has_many_rotations(sequence.runs)) return;
  try {
    Pos first = kMaxPos;
    sequence.runs.for_each({sequence.exact_upto, sequence.runs.end()}, [&](const Run& run) {
      if (run.rotation != 0) first = std::min(first, run.first);
    });
    divide(sequence, {first, sequence.runs.end()}, 1, true);
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }  // it only makes attention faster
}

void Cache::divide(SeqId seq, std::optional<Span> span, Pos divisor) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  Impl::Sequence& sequence = c.find_for_change(seq, "divide");
  const Span moved = checked_span(span, sequence.bounds(), "divide");
  if (divisor < 1) {
    throw InvalidArgument(where("divide") + "divisor is " + std::to_string(divisor) + ", must be at least 1");
  }
  const std::optional<Pos> first = sequence.runs.next(moved.begin);
  if (!first || *first >= moved.end || divisor == 1) return;
  const std::optional<Pos> before = sequence.runs.previous(moved.begin);
  if (before && *first / divisor < *before) {
    throw InvalidArgument(where("divide") + "the token at position " + std::to_string(*first) +
                          " would move to " + std::to_string(*first / divisor) +
                          ", before one outside the span at " + std::to_string(*before) +
                          "; shift() the span to the right first, or remove() that one");
  }
  c.refuse_recurrent(sequence, "divide");
  if (!c.windows.empty())
    throw Unsupported(where("divide") + "a cache with window pools cannot divide positions; " +
                      kKeepAllCells);
  const bool rotates = c.rotates("divide");
  if (!c.divide(sequence, moved, divisor, rotates)) {
    throw OutOfCells(where("divide") + "cells of the span are shared and must be copied, but only " +
                     std::to_string(c.base.cells.counts().free) +
                     " are free; evict() idle cells, erase() sequences or make a larger cache");
  }
}

}  // namespace pykv
