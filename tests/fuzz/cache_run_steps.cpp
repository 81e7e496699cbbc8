// Operations that compute: plan, commit, write, attend, finish or roll back.
#include <cmath>

#include "cache_run.h"

namespace fuzz {

using namespace pykv;

void CacheRun::begin_step() {
  std::vector<std::vector<Token>> texts;
  std::vector<StepRequest> requests;
  std::vector<SeqId> order;
  std::map<SeqId, Sequence> after;
  std::uint64_t rows = 0;
  texts.reserve(3);
  for (std::uint32_t left = 1 + bytes_.below(3); left > 0; --left) {
    const auto seq = pick();
    if (!seq || after.contains(*seq) || model_.at(*seq).end() > kMaxPos - 100) continue;
    Sequence next = model_.at(*seq);
    const bool exact = next.exact == next.end();
    texts.push_back(text());
    if (state_layer_ && bytes_.below(2) == 0) {
      const Pos left = cache_->next_point(*seq) - next.end();  // a step that ends there makes a point
      if (left > 0 && static_cast<std::size_t>(left) < texts.back().size())
        texts.back().resize(static_cast<std::size_t>(left));
    }
    StepRequest request{*seq, static_cast<std::uint32_t>(texts.back().size()), texts.back()};
    if (bytes_.below(4) == 0) request.tokens = {};
    for (const Token id : texts.back()) next.append(request.tokens.empty() ? kNoId : id);
    if (exact && !request.tokens.empty()) next.exact = next.end();
    rows += request.count;
    requests.push_back(request);
    order.push_back(*seq);
    after.emplace(*seq, std::move(next));
  }
  if (requests.empty()) return;
  const std::optional<Plan> plan = cache_->plan(requests);
  require(plan.has_value() == has_room(rows, requests.size()), "plan does not answer by what is free");
  if (!plan) return;
  try {
    Step made = cache_->commit(*plan);
    require(!step_, "two steps are open");
    step_.emplace(std::move(made));
    step_order_ = std::move(order);
    after_step_ = std::move(after);
  } catch (const Busy&) {
    require(step_.has_value(), "commit is busy without a step");
  }
}

// Asked after plan(), which lets go what windows no longer need.
bool CacheRun::has_room(std::uint64_t rows, std::uint64_t requests) const {
  const CacheStats s = cache_->stats();
  for (const PoolStats& pool : s.pools)
    if (pool.cells_free < rows) return false;
  return !state_layer_ || requests <= s.states.slots - s.states.slots_used;
}

// Rows of a request are the last tokens of its sequence; requests come in the order of
// `step_order_`.
void CacheRun::write_rows() {
  std::vector<float> k, v;
  for (const SeqId seq : step_order_) {
    const Sequence& after = after_step_.at(seq);
    for (std::size_t i = model_.at(seq).items.size(); i < after.items.size(); ++i) {
      put_k(after.items[i], 0, k);
      put_v(after.items[i], v);
    }
  }
  const std::uint32_t rows = step_->rows();
  require(k.size() == std::size_t{rows} * kKDim, "a step has another number of rows than was planned");
  const BufferId wide = backend_.create_buffer(2 * rows, kKDim);
  const BufferId narrow = backend_.create_buffer(2 * rows, kVDim);
  const Rows k_rows{wide, 0, rows, kKDim}, q{wide, rows, rows, kKDim};
  const Rows v_rows{narrow, 0, rows, kVDim}, out{narrow, rows, rows, kVDim};
  backend_.upload(k_rows, k);
  backend_.upload(v_rows, v);
  for (const std::uint32_t layer : {0U, window_layer_.value_or(0)}) {
    step_->write(layer, k_rows, v_rows);
    attend(layer, q, out);
    if (!window_layer_) break;
  }
  if (state_layer_) pass_states();
  backend_.destroy_buffer(wide);
  backend_.destroy_buffer(narrow);
}

// Queries of zeros weigh all keys alike: what comes out is the mean of the V that the query sees.
void CacheRun::attend(std::uint32_t layer, Rows q, Rows out) {
  std::vector<float> mixed(std::size_t{out.count} * kVDim);
  step_->attend(layer, q, out, {1, 1.0F});
  backend_.download(out, mixed);
  const Window window = layer == 0 ? Window{} : window_;
  std::size_t row = 0;
  for (const SeqId seq : step_order_) {
    const std::vector<Item>& items = after_step_.at(seq).items;
    for (std::size_t i = model_.at(seq).items.size(); i < items.size(); ++i, ++row) {
      const std::vector<double> mean = mean_of_seen(items, i, window);
      for (std::size_t e = 0; e < kVDim; ++e)
        require(std::abs(mixed[row * kVDim + e] - mean[e]) < 0.01, name(seq) + "attention over other tokens");
    }
  }
}

std::vector<double> CacheRun::mean_of_seen(const std::vector<Item>& items, std::size_t query, Window window) {
  std::vector<double> sum(kVDim);
  double seen = 0;
  for (std::size_t i = 0; i <= query; ++i) {
    if (!visible(items[i].position, items[query].position, window)) continue;
    std::vector<float> v;
    put_v(items[i], v);
    for (std::size_t e = 0; e < kVDim; ++e) sum[e] += v[e];
    ++seen;
  }
  for (double& element : sum) element /= seen;
  return sum;
}

void CacheRun::end_step() {
  if (!step_) return;
  if (bytes_.below(4) == 0) {
    step_.reset();  // rolls back
  } else {
    write_rows();
    step_->finish();
    step_.reset();
    for (auto& [seq, sequence] : after_step_) {
      publish(sequence);
      model_.at(seq) = std::move(sequence);
    }
  }
  after_step_.clear();
}

void CacheRun::publish(const Sequence& sequence) {
  for (const Item& item : sequence.items)
    if (item.position < sequence.exact) published_.insert(item.value);
}

}  // namespace fuzz
