// plan(): where a step's tokens will go. commit(): takes the cells, all or nothing.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

using Item = Plan::Data::Item;

void check_request(const StepRequest& request, std::size_t index) {
  const std::string at = where("plan") + "request " + std::to_string(index) + ": ";
  if (request.count == 0) throw InvalidArgument(at + "count is 0, must be at least 1");
  if (!request.tokens.empty() && request.tokens.size() != request.count) {
    throw InvalidArgument(at + std::to_string(request.tokens.size()) + " token ids for a count of " +
                          std::to_string(request.count) + "; give one each, or none");
  }
  for (const Token token : request.tokens) {
    if (token < 0) {
      throw InvalidArgument(at + "token id " + std::to_string(token) + " is negative; ids start at 0");
    }
  }
}

void check_position(Pos end, std::uint32_t count, std::size_t index) {
  if (count <= static_cast<std::uint32_t>(kMaxPos - end)) return;
  throw InvalidArgument(where("plan") + "request " + std::to_string(index) + ": " + std::to_string(count) +
                        " tokens after position " + std::to_string(end) + " pass the last position " +
                        std::to_string(kMaxPos));
}

CellRequest cell_request(SeqId seq, std::uint32_t count, const RunList& runs) {
  CellRequest request{seq, count, std::nullopt};
  if (const auto last = runs.last()) request.after = last->cell + last->length - 1;
  return request;
}

std::vector<BlockIndex> uncommitted_blocks(const Cache::Impl& cache, const std::vector<Item>& items) {
  std::vector<BlockIndex> blocks;
  for (const Item& item : items) {
    for (const CellSpan span : item.cells) {
      const BlockIndex last = (span.begin + span.length - 1) / kBlockCells;
      for (BlockIndex block = span.begin / kBlockCells; block <= last; ++block) {
        if (!cache.is_committed(block)) blocks.push_back(block);
      }
    }
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

}  // namespace

std::uint32_t Plan::tokens() const { return data_ ? data_->rows : 0; }
std::uint64_t Plan::blocks_to_commit() const { return data_ ? data_->to_commit.size() : 0; }

std::optional<Plan> Cache::plan(std::span<const StepRequest> requests) const {
  const Impl& c = *impl_;
  if (requests.empty()) throw InvalidArgument(where("plan") + "no requests; give at least one");
  const auto lock = c.link->lock();
  auto data = std::make_shared<Plan::Data>();
  data->cache_id = c.cache_id;
  data->generation = c.generation;
  std::vector<CellRequest> wanted;
  std::unordered_set<SeqId> seen;
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const StepRequest& request = requests[i];
    check_request(request, i);
    const Impl::Sequence& sequence = c.find(request.seq, "plan");
    if (!seen.insert(request.seq).second) {
      throw InvalidArgument(where("plan") + "sequence " + std::to_string(request.seq.value) +
                            " is named twice; put its tokens into one request");
    }
    const Pos end = sequence.runs.end();
    check_position(end, request.count, i);
    const bool exact = !request.tokens.empty() && sequence.exact_upto == end;
    data->items.push_back({request.seq, end, request.count, static_cast<std::uint32_t>(rows), exact, {}});
    rows += request.count;
    wanted.push_back(cell_request(request.seq, request.count, sequence.runs));
  }
  auto found = rows <= c.cells.counts().free ? c.cells.find(wanted) : std::nullopt;
  if (!found) {
    ++c.alloc_failures;
    return std::nullopt;
  }
  data->rows = static_cast<std::uint32_t>(rows);
  data->tokens.resize(rows);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    data->items[i].cells = std::move((*found)[i]);
    std::copy(requests[i].tokens.begin(), requests[i].tokens.end(),
              data->tokens.begin() + data->items[i].first_row);
  }
  data->to_commit = uncommitted_blocks(c, data->items);
  Plan plan;
  plan.data_ = std::move(data);
  return plan;
}

namespace {

// The sequence's runs plus the item's cells, which are taken here. The list that comes
// back owns them; nothing stays taken if this throws.
RunList extended(Cache::Impl& cache, const Item& item) {
  RunList runs = cache.find(item.seq, "commit").runs;
  Pos next = item.first;
  for (const CellSpan span : item.cells) {
    cache.cells.take(item.seq, span);
    try {
      runs.append({next, span.begin, span.length, 0}, RunList::Hold::adopt);
    } catch (...) {
      cache.cells.drop_holder(span);
      throw;
    }
    next += static_cast<Pos>(span.length);
  }
  return runs;
}

void add_rows(Step::Impl& step, const Item& item, const RunList& runs) {
  for (std::uint32_t i = 0; i < item.count; ++i) step.positions.push_back(item.first + static_cast<Pos>(i));
  for (const CellSpan span : item.cells) {
    for (std::uint32_t i = 0; i < span.length; ++i) step.cells.push_back(span.begin + i);
  }
  AttentionGroup group{item.first_row,
                       item.count,
                       item.first,
                       static_cast<std::uint32_t>(step.attention.segments.size()),
                       0,
                       static_cast<std::uint32_t>(item.first)};
  runs.for_each({0, item.end()}, [&](const Run& run) {
    step.attention.segments.push_back(
        {run.first, run.cell, run.length, run.rotation, static_cast<std::uint32_t>(run.first)});
    ++group.segments;
  });
  step.attention.groups.push_back(group);
}

}  // namespace

Step Cache::commit(Plan plan) {
  Impl& c = *impl_;
  const auto lock = c.link->lock();
  if (c.open_step != nullptr) {
    throw Busy(where("commit") + "another step is open; finish it or roll it back first");
  }
  if (!plan.data_ || plan.data_->cache_id != c.cache_id || plan.data_->generation != c.generation) {
    throw StalePlan(where("commit") +
                    "the cache changed after plan() or the plan is another cache's; plan again");
  }
  const Plan::Data& data = *plan.data_;
  auto step = std::make_unique<Step::Impl>();
  step->link = c.link;
  step->plan = plan.data_;
  step->runs.reserve(data.items.size());
  step->positions.reserve(data.rows);
  step->cells.reserve(data.rows);
  step->written.resize(c.layout.layer_count());

  c.backend.commit_blocks(c.pool, data.to_commit);
  try {
    for (const Item& item : data.items) {
      step->runs.push_back(extended(c, item));
      add_rows(*step, item, step->runs.back());
    }
  } catch (...) {
    step->runs.clear();  // gives the cells back
    c.backend.release_blocks(c.pool, data.to_commit);
    throw;
  }
  c.set_committed(data.to_commit, true);
  c.open_step = step.get();
  c.touch();
  return Step(std::move(step));
}

}  // namespace pykv
