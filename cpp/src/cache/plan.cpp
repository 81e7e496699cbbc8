// plan(): where a step's tokens will go. commit(): takes the cells, all or nothing.
#include <utility>

#include "cache/cache_impl.h"

namespace pykv {
namespace {

using Item = Plan::Data::Item;

std::string at_request(std::size_t index) {
  return where("plan") + "request " + std::to_string(index) + ": ";
}

void check_request(const StepRequest& request, std::size_t index) {
  if (request.count == 0) throw InvalidArgument(at_request(index) + "count is 0, must be at least 1");
  if (!request.tokens.empty() && request.tokens.size() != request.count) {
    throw InvalidArgument(at_request(index) + std::to_string(request.tokens.size()) +
                          " token ids for a count of " + std::to_string(request.count) +
                          "; give one each, or none");
  }
  for (const Token token : request.tokens) {
    if (token < 0) {
      throw InvalidArgument(at_request(index) + "token id " + std::to_string(token) +
                            " is negative; ids start at 0");
    }
  }
}

void check_position(Pos end, std::uint32_t count, std::size_t index) {
  if (count <= static_cast<std::uint32_t>(kMaxPos - end)) return;
  throw InvalidArgument(at_request(index) + std::to_string(count) + " tokens after position " +
                        std::to_string(end) + " pass the last position " + std::to_string(kMaxPos));
}

// The last cell of the sequence as readers see it, to continue next to it.
std::optional<CellIndex> last_cell(const Cache::Impl::Sequence& sequence) {
  const auto last = sequence.in_step ? sequence.runs.find(sequence.end() - 1) : sequence.runs.last();
  if (!last) return std::nullopt;
  return last->cell + static_cast<std::uint32_t>(sequence.end() - 1 - last->first);
}

// Where the tokens of all items go.
void add_cells(const Cache::Impl& cache, const FoundCells& found, Plan::Data& data) {
  data.cells.reserve(data.items.size());
  for (std::size_t i = 0; i < data.items.size(); ++i) {
    const std::span<const CellSpan> spans = found.of(i);
    data.items[i].first_span = static_cast<std::uint32_t>(data.cells.size());
    data.items[i].spans = static_cast<std::uint32_t>(spans.size());
    data.cells.insert(data.cells.end(), spans.begin(), spans.end());
  }
  cache.add_uncommitted(data.cells, data.to_commit);
}

}  // namespace

std::uint32_t Plan::tokens() const { return data_ ? data_->rows : 0; }
std::uint64_t Plan::blocks_to_commit() const { return data_ ? data_->to_commit.size() : 0; }

std::optional<Plan> Cache::plan(std::span<const StepRequest> requests) const {
  Impl& c = *impl_;  // of which scratch memory and counters change
  if (requests.empty()) throw InvalidArgument(where("plan") + "no requests; give at least one");
  const auto lock = c.link->lock();
  auto data = std::make_shared<Plan::Data>();
  data->cache_id = c.cache_id;
  data->generation = c.generation;
  data->items.reserve(requests.size());
  Impl::Scratch& scratch = c.scratch;
  scratch.wanted.clear();
  ++scratch.plans;
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const StepRequest& request = requests[i];
    check_request(request, i);
    Impl::Sequence& sequence = c.find(request.seq, "plan");
    if (std::exchange(sequence.last_plan, scratch.plans) == scratch.plans) {
      throw InvalidArgument(where("plan") + "sequence " + std::to_string(request.seq.value) +
                            " is named twice; put its tokens into one request");
    }
    const Pos end = sequence.end();
    check_position(end, request.count, i);
    Item& item = data->items.emplace_back();
    item.seq = request.seq;
    item.sequence = &sequence;
    item.first = end;
    item.count = request.count;
    item.first_row = static_cast<std::uint32_t>(rows);
    item.exact = !request.tokens.empty() && sequence.exact_upto == end;
    rows += request.count;
    CellRequest& wanted = scratch.wanted.emplace_back();
    wanted.seq = request.seq;
    wanted.cells = request.count;
    wanted.after = last_cell(sequence);
  }
  if (rows > c.cells.counts().free || !c.cells.find(scratch.wanted, scratch.found)) {
    ++c.alloc_failures;
    return std::nullopt;
  }
  data->rows = static_cast<std::uint32_t>(rows);
  data->tokens.reserve(rows);
  for (const StepRequest& request : requests) {
    data->tokens.insert(data->tokens.end(), request.tokens.begin(), request.tokens.end());
    if (request.tokens.empty()) data->tokens.resize(data->tokens.size() + request.count);
  }
  add_cells(c, scratch.found, *data);
  Plan plan;
  plan.data_ = std::move(data);
  return plan;
}

void Cache::Impl::take(const Plan::Data& plan, const Item& item) {
  Sequence& sequence = *item.sequence;
  const std::span<const CellSpan> spans = plan.cells_of(item);
  Sequence::Before& before = sequence.in_step.emplace(Sequence::Before{});
  before.end = item.first;
  before.lease = cells.lease(item.seq, spans.front().begin / kBlockCells);
  Pos next = item.first;
  for (const CellSpan span : spans) {
    cells.take(item.seq, span);
    try {
      sequence.runs.append({next, span.begin, span.length, 0}, RunList::Hold::adopt);
    } catch (...) {
      cells.drop_holder(span);
      throw;
    }
    next += static_cast<Pos>(span.length);
  }
}

// Cutting off what was appended last needs no memory: append() made those nodes this list's.
void Cache::Impl::take_back(std::span<const Item> items) noexcept {
  for (const Item& item : items) {
    Sequence& sequence = *item.sequence;
    if (!sequence.in_step) continue;
    try {
      sequence.runs.truncate(sequence.in_step->end);
    } catch (const IntegrityError&) {
      // The map lost a holder before; check_integrity() reports it, ending here would not.
    }
    cells.restore_lease(item.seq, sequence.in_step->lease);
    sequence.in_step.reset();
  }
}

namespace {

void add_rows(Step::Impl& step, const Plan::Data& plan) {
  step.positions.reserve(plan.rows);
  step.cells.reserve(plan.rows);
  for (const Item& item : plan.items) {
    for (Pos at = item.first; at < item.end(); ++at) step.positions.push_back(at);
  }
  for (const CellSpan span : plan.cells) {
    for (std::uint32_t i = 0; i < span.length; ++i) step.cells.push_back(span.begin + i);
  }
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
  step->written.resize(c.layout.layer_count());
  add_rows(*step, data);

  try {
    for (const Item& item : data.items) c.take(data, item);
    c.commit_blocks(data.to_commit);
  } catch (...) {
    c.take_back(data.items);
    throw;
  }
  c.open_step = step.get();
  c.touch();
  return Step(std::move(step));
}

}  // namespace pykv
