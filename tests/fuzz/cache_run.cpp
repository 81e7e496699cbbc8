#include "cache_run.h"

namespace fuzz {

using namespace pykv;

namespace {

constexpr float kOfV = 256;  // added to the values of V

std::uint64_t constant_hash(std::uint32_t, std::uint32_t, Token) { return 0; }

std::string name(SeqId seq) { return "sequence " + std::to_string(seq.value) + ": "; }

// The rows that stand for a value: every element tells K from V and one byte from another.
void put(std::uint64_t value, float add, std::vector<float>& rows) {
  for (std::uint32_t i = 0; i < 8; ++i) rows.push_back(static_cast<float>(value >> (8 * i) & 255U) + add);
}

}  // namespace

CacheRun::CacheRun(std::span<const std::uint8_t> given) : bytes_(given) {
  const std::uint8_t how = bytes_.next();
  LayerSpec layer;
  layer.kv_heads = 1;
  layer.k_dim = layer.v_dim = kDim;
  CacheConfig config;
  config.layers = {layer};
  config.ropes.resize(1);
  config.ropes[0].dims = kDim;
  config.type_k = config.type_v = DType::f32;
  config.cells = kCells;
  if ((how & 1U) != 0) config.edge_hash = constant_hash;
  if ((how & 2U) != 0)
    config.pool_bytes = 3 * BlockLayout(config.layers, 0, DType::f32, DType::f32).block_bytes();
  config.clock = [this] { return ticks_ += 1; };
  cache_ = std::make_unique<Cache>(std::move(config), backend_);
}

void CacheRun::run() {
  for (int i = 0; i < kMaxOperations && !bytes_.empty(); ++i) {
    operate();
    check();
  }
  step_.reset();
  after_step_.clear();
  check();
  cache_->erase_all();
  cache_->reset_prefixes();
  const CacheStats stats = cache_->stats();
  require(stats.cells_free == stats.cells_capacity && stats.tree_nodes == 0, "something is left at the end");
}

void CacheRun::operate() {
  using Operation = void (CacheRun::*)();
  static constexpr Operation kOperations[] = {
      &CacheRun::create,   &CacheRun::open,       &CacheRun::fork,       &CacheRun::clear,
      &CacheRun::erase,    &CacheRun::keep,       &CacheRun::remove,     &CacheRun::copy,
      &CacheRun::shift,    &CacheRun::begin_step, &CacheRun::begin_step, &CacheRun::end_step,
      &CacheRun::end_step, &CacheRun::space,      &CacheRun::open,       &CacheRun::begin_step,
  };
  (this->*kOperations[bytes_.next() % std::size(kOperations)])();
}

std::optional<SeqId> CacheRun::pick() {
  if (model_.empty()) return std::nullopt;
  return std::next(model_.begin(), bytes_.below(static_cast<std::uint32_t>(model_.size())))->first;
}

std::vector<Token> CacheRun::text() {
  std::vector<Token> tokens(1 + bytes_.below(48));
  // One byte for a whole text: the same for all tokens, but for one place where it turns.
  const std::uint8_t pattern = bytes_.next();
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = i % 16 == pattern / 16U ? pattern % 4 : 0;
  return tokens;
}

Span CacheRun::span_of(const Sequence& sequence) {
  const auto end = static_cast<std::uint32_t>(sequence.end());
  if (end > 0xffff) return {sequence.begin(), sequence.end()};
  std::uint32_t a = (bytes_.next() * 256U + bytes_.next()) % (end + 1);
  std::uint32_t b = (bytes_.next() * 256U + bytes_.next()) % (end + 1);
  if (a > b) std::swap(a, b);
  return {static_cast<Pos>(a), static_cast<Pos>(b)};
}

bool CacheRun::is_busy(SeqId seq) const { return step_ && after_step_.contains(seq); }

template <class Change>
bool CacheRun::allowed(SeqId seq, Change change) {
  try {
    change();
  } catch (const Busy&) {
    require(is_busy(seq), name(seq) + "busy without a step");
    return false;
  }
  require(!is_busy(seq), name(seq) + "changed in the open step");
  return true;
}

void CacheRun::add(SeqId seq, Sequence sequence) {
  require(model_.emplace(seq, std::move(sequence)).second, name(seq) + "numbered twice");
}

void CacheRun::create() {
  if (model_.size() >= kMaxSequences) return;
  const std::uint32_t name_space = bytes_.below(2);
  add(cache_->create({name_space}), {name_space, {}, 0});
}

void CacheRun::open() {
  if (model_.size() >= kMaxSequences) return;
  const std::uint32_t name_space = bytes_.below(2);
  const std::vector<Token> tokens = text();
  std::optional<std::uint32_t> limit;
  if (bytes_.below(4) == 0) limit = bytes_.below(50);
  const std::uint32_t matched = cache_->match({name_space}, tokens);
  const Cache::Opened opened = cache_->open({name_space}, tokens, limit);
  const std::uint32_t most = std::min(static_cast<std::uint32_t>(tokens.size()) - 1, limit.value_or(~0U));
  require(opened.reused == std::min(matched, most), name(opened.seq) + "reuses another length than matched");
  Sequence sequence{name_space, {}, static_cast<Pos>(opened.reused)};
  for (std::uint32_t i = 0; i < opened.reused; ++i) sequence.append(tokens[i]);
  require(opened.reused == 0 || published_.contains(sequence.items.back().value),
          name(opened.seq) + "reuses what was never published");
  add(opened.seq, std::move(sequence));
}

void CacheRun::fork() {
  const auto from = pick();
  if (!from || model_.size() >= kMaxSequences) return;
  SeqId made;
  if (allowed(*from, [&] { made = cache_->fork(*from); })) add(made, Sequence(model_.at(*from)));
}

void CacheRun::clear() {
  const auto seq = pick();
  if (!seq || !allowed(*seq, [&] { cache_->clear(*seq); })) return;
  model_.at(*seq).items.clear();
  model_.at(*seq).exact = 0;
}

void CacheRun::erase() {
  const auto seq = pick();
  if (seq && allowed(*seq, [&] { cache_->erase(*seq); })) model_.erase(*seq);
}

void CacheRun::keep() {
  if (bytes_.below(4) != 0) return;  // it ends most of what there is
  std::vector<SeqId> kept;
  for (const auto& [seq, sequence] : model_)
    if (bytes_.below(2) == 0 || is_busy(seq)) kept.push_back(seq);
  cache_->keep(kept);
  std::erase_if(model_, [&](const auto& entry) {
    return std::find(kept.begin(), kept.end(), entry.first) == kept.end();
  });
}

void CacheRun::remove() {
  const auto seq = pick();
  if (!seq) return;
  Sequence& sequence = model_.at(*seq);
  const Span span = span_of(sequence);
  if (allowed(*seq, [&] { cache_->remove(*seq, span); })) sequence.remove(span);
}

void CacheRun::copy() {
  const auto from = pick(), to = pick();
  if (!from || !to || is_busy(*from) || is_busy(*to)) return;
  const Sequence source = model_.at(*from);
  Sequence& target = model_.at(*to);
  const Span span = span_of(source);
  std::vector<Item> copied;
  bool collides = false;
  for (const Item& item : source.items) {
    if (item.position < span.begin || item.position >= span.end) continue;
    copied.push_back(item);
    collides = collides || target.has_any({item.position, item.position + 1});
  }
  try {
    cache_->copy(*from, span, *to);
  } catch (const InvalidArgument&) {
    require(collides, "copy refuses what does not collide");
    return;
  }
  require(!collides, "copy takes what collides");
  if (copied.empty()) return;
  const Pos first = copied.front().position;
  const bool prefix = target.items.empty() && first == 0 && source.name_space == target.name_space;
  target.exact = prefix ? std::min(source.exact, span.end) : std::min(target.exact, first);
  target.items.insert(target.items.end(), copied.begin(), copied.end());
  std::stable_sort(target.items.begin(), target.items.end(),
                   [](const Item& a, const Item& b) { return a.position < b.position; });
}

void CacheRun::shift() {
  const auto seq = pick();
  if (!seq) return;
  Sequence& sequence = model_.at(*seq);
  const Span span = span_of(sequence);
  Pos delta = static_cast<Pos>(bytes_.next()) - 128;
  if (bytes_.below(16) == 0) delta = kMaxPos - sequence.end();
  std::vector<Item> moved = sequence.items;
  std::optional<Pos> first;
  for (Item& item : moved) {
    if (item.position < span.begin || item.position >= span.end) continue;
    if (!first) first = item.position;
    item.position += delta;
  }
  const bool fits = std::is_sorted(moved.begin(), moved.end(),
                                   [](const Item& a, const Item& b) { return a.position < b.position; }) &&
                    std::adjacent_find(moved.begin(), moved.end(),
                                       [](const Item& a, const Item& b) {
                                         return a.position == b.position;
                                       }) == moved.end() &&
                    (moved.empty() || moved.front().position >= 0);
  try {
    if (!allowed(*seq, [&] { cache_->shift(*seq, span, delta); })) return;
  } catch (const InvalidArgument&) {
    require(!fits, name(*seq) + "shift refuses what fits");
    return;
  }
  require(fits || !first || delta == 0, name(*seq) + "shift lets tokens pass others");
  if (!first || delta == 0) return;
  sequence.items = std::move(moved);
  sequence.exact = std::min(sequence.exact, *first);
}

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
  const std::uint64_t free = cache_->stats().cells_free;
  const std::optional<Plan> plan = cache_->plan(requests);
  require(plan.has_value() == (rows <= free), "plan does not answer by the free cells");
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

// Rows of a request are the last tokens of its sequence; requests come in the order of
// `step_order_`.
void CacheRun::write_rows() {
  std::vector<float> k, v;
  for (const SeqId seq : step_order_) {
    const Sequence& after = after_step_.at(seq);
    for (std::size_t i = model_.at(seq).items.size(); i < after.items.size(); ++i) {
      put(after.items[i].value, 0.0F, k);
      put(after.items[i].value, kOfV, v);
    }
  }
  const std::uint32_t rows = step_->rows();
  require(k.size() == std::size_t{rows} * kDim, "a step has another number of rows than was planned");
  const BufferId buffer = backend_.create_buffer(4 * rows, kDim);
  const Rows k_rows{buffer, 0, rows, kDim}, v_rows{buffer, rows, rows, kDim}, q{buffer, 2 * rows, rows, kDim},
      out{buffer, 3 * rows, rows, kDim};
  backend_.upload(k_rows, k);
  backend_.upload(v_rows, v);
  step_->write(0, k_rows, v_rows);
  attend(q, out);
  backend_.destroy_buffer(buffer);
}

void CacheRun::attend(Rows q, Rows out) {
  std::vector<float> mixed(std::size_t{out.count} * kDim);
  try {
    step_->attend(0, q, out, {1, 1.0F});
    backend_.download(out, mixed);
  } catch (const Error&) {
    const auto plain = [](const auto& entry) { return entry.second.is_plain(); };
    require(!std::all_of(after_step_.begin(), after_step_.end(), plain), "attention refuses plain sequences");
    return;
  }
  // Every element of V lies in [kOfV, kOfV + 255], so a mean of them does; NaN does not.
  for (const float x : mixed) require(x >= kOfV - 1 && x <= kOfV + 256, "attention reads what nobody wrote");
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

void CacheRun::space() {
  const CacheStats before = cache_->stats();
  switch (bytes_.below(5)) {
    case 0: {
      const std::uint32_t wanted = bytes_.next();
      const std::uint32_t freed = cache_->evict(wanted, EvictReason::demand);
      require(freed >= std::min<std::uint64_t>(wanted, before.cells_idle), "evict leaves idle cells");
      break;
    }
    case 1:
      cache_->reclaim(bytes_.next());
      break;
    case 2:
      cache_->reset_prefixes();
      require(cache_->stats().cells_idle == 0, "reset_prefixes leaves idle cells");
      break;
    case 3:
      cache_->set_watermarks({bytes_.below(50) / 100.0, 0.5 + bytes_.below(50) / 100.0});
      break;
    default:
      if (step_) return;
      cache_->erase_all();
      model_.clear();
  }
  require(cache_->stats().cells_free >= before.cells_free, "there is less space than before");
}

void CacheRun::check() {
  cache_->check_integrity();
  const CacheStats s = cache_->stats();
  require(s.cells_computing + s.cells_active + s.cells_idle + s.cells_free == s.cells_capacity,
          "states do not add up");
  require(s.sequences == model_.size() && cache_->sequences().size() == model_.size(),
          "another number of sequences");
  for (const auto& [seq, sequence] : model_) check_sequence(seq, sequence);
}

void CacheRun::check_sequence(SeqId seq, const Sequence& sequence) {
  require((cache_->bounds(seq) == Span{sequence.begin(), sequence.end()}), name(seq) + "other bounds");
  require(cache_->exact_upto(seq) == sequence.exact, name(seq) + "another exact_upto");
  std::vector<float> k, v;
  for (const Item& item : sequence.items) {
    put(item.value, 0.0F, k);
    put(item.value, kOfV, v);
  }
  const Cache::RowValues rows = cache_->read_rows(seq, 0, std::nullopt);
  require(rows.k == k && rows.v == v, name(seq) + "other values than were written");
  std::size_t at = 0;
  for (const Run& run : cache_->runs(seq))
    for (Pos position = run.first; position < run.end(); ++position, ++at)
      require(at < sequence.items.size() && sequence.items[at].position == position,
              name(seq) + "other positions");
  const auto exact = static_cast<std::size_t>(sequence.exact);
  require(cache_->match({sequence.name_space}, sequence.ids(exact)) == exact,
          name(seq) + "its exact tokens do not match");
}

void run_cache(std::span<const std::uint8_t> bytes) { CacheRun(bytes).run(); }

}  // namespace fuzz
