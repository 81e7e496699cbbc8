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
std::optional<CellIndex> last_cell(const Cache::Impl::Sequence& sequence, std::size_t pool) {
  const RunList& runs = Cache::Impl::runs_of(sequence, pool);
  const auto last = sequence.in_step ? runs.find(sequence.end() - 1) : runs.last();
  if (!last) return std::nullopt;
  return last->cell + static_cast<std::uint32_t>(sequence.end() - 1 - last->first);
}

// Where the tokens of all items go in one pool; false: it has not enough cells.
bool find_cells_in(Cache::Impl& cache, std::size_t index, std::uint64_t rows, Plan::Data& data) {
  const CellPool& pool = cache.pool(index);
  FoundCells& found = cache.scratch.found;
  if (rows > pool.cells.counts().free || !pool.cells.find(cache.scratch.wanted, found)) return false;
  Plan::Data::Part& part = index == 0 ? data.base : data.windows[index - 1];
  part.cells.reserve(data.items.size());
  for (std::size_t i = 0; i < data.items.size(); ++i) {
    const std::span<const CellSpan> spans = found.of(i);
    data.items[i].first_span[index] = static_cast<std::uint32_t>(part.cells.size());
    part.cells.insert(part.cells.end(), spans.begin(), spans.end());
  }
  pool.add_uncommitted(part.cells, part.to_commit);
  return true;
}

bool find_cells(Cache::Impl& cache, std::uint64_t rows, Plan::Data& data) {
  if (!find_cells_in(cache, 0, rows, data)) return false;
  data.windows.resize(cache.windows.size());
  for (std::size_t pool = 1; pool < cache.pools(); ++pool) {
    std::uint64_t cells = 0;
    for (std::size_t i = 0; i < data.items.size(); ++i) {
      const Item& item = data.items[i];
      CellRequest& wanted = cache.scratch.wanted[i];
      wanted.after = last_cell(*item.sequence, pool);
      wanted.cells = static_cast<std::uint32_t>(item.end() -
                                                item.first_in(cache.windows[pool - 1].window, data.imports));
      cells += wanted.cells;
    }
    if (!find_cells_in(cache, pool, cells, data)) return false;
  }
  return true;
}

}  // namespace

std::uint32_t Plan::tokens() const { return data_ ? data_->rows : 0; }
std::uint64_t Plan::blocks_to_commit() const {
  if (!data_) return 0;
  std::uint64_t blocks = data_->base.to_commit.size();
  for (const Data::Part& part : data_->windows) blocks += part.to_commit.size();
  return blocks;
}

std::optional<Plan> Cache::plan(std::span<const StepRequest> requests) const {
  if (requests.empty()) throw InvalidArgument(where("plan") + "no requests; give at least one");
  const auto lock = impl_->link->lock();
  return impl_->plan(requests, false);  // of which scratch memory and counters change
}

std::optional<Plan> Cache::plan_import(const StepRequest& request) const {
  const auto lock = impl_->link->lock();
  const Impl::Sequence& sequence = impl_->find(request.seq, "plan_import");
  if (sequence.in_step || sequence.runs.tokens() > 0)
    throw InvalidArgument(where("plan_import") + "sequence " + std::to_string(request.seq.value) +
                          " has tokens already; import into a new one");
  return impl_->plan({&request, 1}, true);
}

std::optional<Plan> Cache::Impl::plan(std::span<const StepRequest> requests, bool imports) {
  auto data = std::make_shared<Plan::Data>();
  data->cache_id = cache_id;
  data->generation = generation;
  data->imports = imports;
  data->items.reserve(requests.size());
  scratch.wanted.clear();
  ++scratch.plans;
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const StepRequest& request = requests[i];
    check_request(request, i);
    Sequence& sequence = find(request.seq, "plan");
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
    wanted.after = last_cell(sequence, 0);
    if (!windows.empty()) trim(sequence);
  }
  if (!find_cells(*this, rows, *data)) {
    ++alloc_failures;
    return std::nullopt;
  }
  if (states.is_used() && !states.find(static_cast<std::uint32_t>(data->items.size()), data->states)) {
    lacking_states = static_cast<std::uint32_t>(data->items.size());
    ++alloc_failures;
    return std::nullopt;
  }
  data->rows = static_cast<std::uint32_t>(rows);
  data->tokens.reserve(rows);
  for (const StepRequest& request : requests) {
    data->tokens.insert(data->tokens.end(), request.tokens.begin(), request.tokens.end());
    if (request.tokens.empty()) data->tokens.resize(data->tokens.size() + request.count);
  }
  Plan plan;
  plan.data_ = std::move(data);
  return plan;
}

namespace {

// The lease that take_back() restores. An import may need no cells in a window's pool.
std::optional<BlockIndex> lease_of(const CellPool& pool, SeqId seq, std::span<const CellSpan> cells) {
  if (cells.empty()) return std::nullopt;
  return pool.cells.lease(seq, cells.front().begin / kBlockCells);
}

void append(CellMap& cells, SeqId seq, Pos next, std::span<const CellSpan> spans, RunList& runs) {
  for (const CellSpan span : spans) {
    cells.take(seq, span);
    try {
      runs.append({next, span.begin, span.length, 0}, RunList::Hold::adopt);
    } catch (...) {
      cells.drop_holder(span);
      throw;
    }
    next += static_cast<Pos>(span.length);
  }
}

}  // namespace

void Cache::Impl::take(const Plan::Data& plan, const Item& item) {
  Sequence& sequence = *item.sequence;
  Sequence::Before& before = sequence.in_step.emplace(Sequence::Before{});
  before.end = item.first;
  before.lease = lease_of(base, item.seq, plan.cells_of(item));
  for (std::size_t i = 0; i < windows.size(); ++i)
    sequence.windows[i].lease_before = lease_of(windows[i], item.seq, plan.cells_of(item, i + 1));
  append(base.cells, item.seq, item.first, plan.cells_of(item), sequence.runs);
  for (std::size_t i = 0; i < windows.size(); ++i) {
    WindowRuns& window = sequence.windows[i];
    const Pos first = item.first_in(windows[i].window, plan.imports);
    if (plan.imports) window.kept_from = first;
    append(windows[i].cells, item.seq, first, plan.cells_of(item, i + 1), window.runs);
  }
}

// Cutting off what was appended last needs no memory: append() made those nodes this list's.
void Cache::Impl::take_back(std::span<const Item> items) noexcept {
  for (const Item& item : items) {
    Sequence& sequence = *item.sequence;
    if (!sequence.in_step) continue;
    for (std::size_t i = 0; i < pools(); ++i) {
      try {
        runs_of(sequence, i).truncate(sequence.in_step->end);
      } catch (const IntegrityError&) {
        // The map lost a holder before; check_integrity() reports it, ending here would not.
      }
      pool(i).cells.restore_lease(item.seq,
                                  i == 0 ? sequence.in_step->lease : sequence.windows[i - 1].lease_before);
    }
    for (WindowRuns& window : sequence.windows)
      window.kept_from = std::min(window.kept_from, sequence.in_step->end);
    sequence.next_state = {};
    sequence.in_step.reset();
  }
}

namespace {

void add_rows(Step::Impl& step, const Plan::Data& plan) {
  step.positions.reserve(plan.rows);
  for (const Item& item : plan.items) {
    for (Pos at = item.first; at < item.end(); ++at) step.positions.push_back(at);
  }
  step.windows.resize(plan.windows.size());
  for (std::size_t pool = 0; pool <= plan.windows.size(); ++pool) {
    std::vector<CellIndex>& cells = step.part(pool).cells;
    cells.reserve(plan.rows);
    for (const CellSpan span : plan.part(pool).cells) {
      for (std::uint32_t i = 0; i < span.length; ++i) cells.push_back(span.begin + i);
    }
  }
}

// Each request reads its sequence's state and writes the slot found for it.
void add_states(Step::Impl& step, const Plan::Data& plan) {
  if (plan.states.empty()) return;
  const std::size_t layers = step.written.size();
  step.conv_done.resize(layers);
  step.scan_done.resize(layers);
  step.stretches.reserve(plan.items.size());
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const Item& item = plan.items[i];
    step.stretches.push_back({item.first_row, item.count, item.sequence->state.slot(), plan.states[i]});
  }
}

}  // namespace

// Of all pools or none.
void Cache::Impl::commit_blocks(const Plan::Data& plan) {
  std::size_t done = 0;
  try {
    for (; done < pools(); ++done) pool(done).commit_blocks(plan.part(done).to_commit);
  } catch (...) {
    while (done-- > 0) pool(done).release_blocks(plan.part(done).to_commit);
    throw;
  }
}

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
  step->written.resize(c.config.layers.size());
  add_rows(*step, data);

  std::vector<StateRef> states;
  try {
    for (const Item& item : data.items) c.take(data, item);
    c.commit_blocks(data);
    states = c.states.take(data.states);
    add_states(*step, data);
  } catch (...) {
    c.take_back(data.items);
    throw;
  }
  for (std::size_t i = 0; i < states.size(); ++i) data.items[i].sequence->next_state = std::move(states[i]);
  c.open_step = step.get();
  c.touch();
  return Step(std::move(step));
}

}  // namespace pykv
