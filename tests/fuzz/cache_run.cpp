#include "cache_run.h"

#include <cmath>

namespace fuzz {

using namespace pykv;

namespace {

std::uint64_t constant_hash(std::uint32_t, std::uint32_t, Token) { return 0; }

}  // namespace

CacheRun::CacheRun(std::span<const std::uint8_t> given) : bytes_(given) {
  const std::uint8_t how = bytes_.next();
  LayerSpec layer;
  layer.kv_heads = 1;
  layer.k_dim = kKDim;
  layer.v_dim = kVDim;
  CacheConfig config;
  config.layers = {layer};
  if ((how & 4U) == 0) rope_.dims = kTurned;
  rope_.offset = kValueBytes;
  config.ropes = {rope_};
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
      &CacheRun::divide,   &CacheRun::shift,      &CacheRun::shift,
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

bool CacheRun::is_busy(SeqId seq) const { return step_ && after_step_.contains(seq); }

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

void CacheRun::space() {
  const CacheStats before = cache_->stats();
  switch (bytes_.below(6)) {
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
    case 4: {
      const std::uint32_t cells = bytes_.next();
      try {
        const std::uint32_t moved = cache_->compact(cells * before.bytes_per_cell);
        require(moved <= cells && !step_, "compact moves too much, or beside a step");
      } catch (const Busy&) {
        require(step_.has_value(), "compact is busy without a step");
      }
      break;
    }
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
  check_rows(seq, sequence);
  std::size_t at = 0;
  for (const Run& run : cache_->runs(seq))
    for (Pos position = run.first; position < run.end(); ++position, ++at)
      require(at < sequence.items.size() && sequence.items[at].position == position,
              name(seq) + "other positions");
  require(at == sequence.items.size(), name(seq) + "tokens without a run");
  const auto exact = static_cast<std::size_t>(sequence.exact);
  require(cache_->match({sequence.name_space}, sequence.ids(exact)) == exact,
          name(seq) + "its exact tokens do not match");
}

void CacheRun::check_rows(SeqId seq, const Sequence& sequence) {
  const Cache::RowValues rows = cache_->read_rows(seq, 0, std::nullopt);
  std::vector<float> k, v;
  for (const Item& item : sequence.items) {
    put_k(item, item.position - item.written, k);
    put_v(item, v);
  }
  require(rows.v == v && rows.k.size() == k.size(), name(seq) + "other values than were written");
  for (std::size_t i = 0; i < k.size(); ++i) {
    const float limit = i % kKDim < kValueBytes ? 0.0F : kTurnError;
    require(std::abs(rows.k[i] - k[i]) <= limit, name(seq) + "other K than was written");
  }
}

// Bytes of the value, which no rotation touches, and pairs (1, 0) turned by `moved` positions.
void CacheRun::put_k(const Item& item, Pos moved, std::vector<float>& rows) const {
  put_v(item, rows);
  for (std::uint32_t pair = 0; pair < kTurned / 2; ++pair) {
    const double angle = rope_.dims == 0 ? 0 : moved * std::pow(double{rope_.base}, -2.0 * pair / rope_.dims);
    rows.push_back(static_cast<float>(std::cos(angle)));
    rows.push_back(static_cast<float>(std::sin(angle)));
  }
  rows.resize(rows.size() + kKDim - kValueBytes - kTurned);
}

void CacheRun::put_v(const Item& item, std::vector<float>& rows) {
  for (std::uint32_t i = 0; i < kValueBytes; ++i)
    rows.push_back(static_cast<float>(item.value >> (8 * i) & 255U));
}

void run_cache(std::span<const std::uint8_t> bytes) { CacheRun(bytes).run(); }

}  // namespace fuzz
