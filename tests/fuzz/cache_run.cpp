#include "cache_run.h"

#include <cmath>

namespace fuzz {

using namespace pykv;

namespace {

std::uint64_t constant_hash(std::uint32_t, std::uint32_t, Token) { return 0; }

}  // namespace

CacheRun::CacheRun(std::span<const std::uint8_t> given) : bytes_(given) {
  cache_ = std::make_unique<Cache>(config_of(bytes_.next()), backend_);
}

CacheConfig CacheRun::config_of(std::uint8_t how) {
  LayerSpec layer;
  layer.kv_heads = 1;
  layer.k_dim = kKDim;
  layer.v_dim = kVDim;
  CacheConfig config;
  config.layers = {layer};
  if ((how & 8U) != 0) {
    window_layer_ = static_cast<std::uint32_t>(config.layers.size());
    window_ = {(how & 32U) != 0 ? WindowKind::chunked : WindowKind::standard, 12};
    layer.pool = 1;
    layer.window_kind = window_.kind;
    layer.window_size = window_.size;
    config.layers.push_back(layer);
    if ((how & 128U) != 0) config.window_cells = kBlockCells;
  }
  if ((how & 16U) != 0) {
    state_layer_ = static_cast<std::uint32_t>(config.layers.size());
    LayerSpec stateless;  // without K and V
    stateless.kv_heads = 0;
    config.layers.push_back(stateless);
    config.recurrent.resize(config.layers.size());
    config.recurrent.back() = {kStateHalf, kStateHalf};
  }
  config.max_sequences = 4;
  config.step_tokens = kLongestText;
  config.resume_spacing = 20;
  if ((how & 64U) != 0) config.resume_bytes = 0;
  if ((how & 4U) == 0) rope_.dims = kTurned;
  rope_.offset = kValueBytes;
  config.ropes = {rope_};
  config.type_k = config.type_v = DType::f32;
  config.cells = kCells;
  if ((how & 1U) != 0) config.edge_hash = constant_hash;
  if ((how & 2U) != 0) config.pool_bytes = memory_plan(config).bytes_reserved * 3 / 4;
  config.clock = [this] { return ticks_ += 1; };
  return config;
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
  require(stats.tree_nodes == 0 && stats.resume_points == 0 && stats.states.slots_used == 0,
          "something is left at the end");
  for (const PoolStats& pool : stats.pools)
    require(pool.cells_free == pool.cells_capacity, "cells are left at the end");
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
  static constexpr Operation kForgetting[] = {&CacheRun::rewind, &CacheRun::mark, &CacheRun::room};
  const std::size_t which =
      bytes_.next() % (std::size(kOperations) + (forgets() ? std::size(kForgetting) : 0));
  const bool is_general = which < std::size(kOperations);
  (this->*(is_general ? kOperations[which] : kForgetting[which - std::size(kOperations)]))();
}

std::optional<SeqId> CacheRun::pick() {
  if (model_.empty()) return std::nullopt;
  return std::next(model_.begin(), bytes_.below(static_cast<std::uint32_t>(model_.size())))->first;
}

std::vector<Token> CacheRun::text() {
  std::vector<Token> tokens(1 + bytes_.below(kLongestText));
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
  check_opened(opened, tokens, {name_space}, limit, matched);
  Sequence sequence{name_space, {}, static_cast<Pos>(opened.reused)};
  for (std::uint32_t i = 0; i < opened.reused; ++i) sequence.append(tokens[i]);
  require(opened.reused == 0 || published_.contains(sequence.items.back().value),
          name(opened.seq) + "reuses what was never published");
  add(opened.seq, std::move(sequence));
}

// Where tokens are forgotten, what was matched may be deeper than what may be reused, and the place
// to go on from higher than that.
void CacheRun::check_opened(const Cache::Opened& opened, const std::vector<Token>& tokens,
                            NamespaceId name_space, std::optional<std::uint32_t> limit,
                            std::uint32_t matched) {
  const std::uint32_t most = std::min(static_cast<std::uint32_t>(tokens.size()) - 1, limit.value_or(~0U));
  const bool is_free = !forgets() || matched <= most;
  require(is_free ? opened.reused == std::min(matched, most) : opened.reused <= most,
          name(opened.seq) + "reuses another length than matched");
  if (limit) return;
  require(opened.reused + opened.no_resume_point == std::min(cache_->stored(name_space, tokens), most),
          name(opened.seq) + "tells another number of tokens without a resume point");
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
        require((moved <= cells || forgets()) && !step_, "compact moves too much, or beside a step");
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
  for (const PoolStats& pool : s.pools)
    require(
        pool.cells_computing + pool.cells_active + pool.cells_resume + pool.cells_idle + pool.cells_free ==
            pool.cells_capacity,
        "states do not add up");
  require(s.bytes_committed <= s.bytes_budget && s.resume_bytes <= s.resume_bytes_budget,
          "more memory than the budget");
  require(s.sequences == model_.size() && cache_->sequences().size() == model_.size(),
          "another number of sequences");
  for (const auto& [seq, sequence] : model_) check_sequence(seq, sequence);
}

void CacheRun::check_sequence(SeqId seq, const Sequence& sequence) {
  require((cache_->bounds(seq) == Span{sequence.begin(), sequence.end()}), name(seq) + "other bounds");
  require(cache_->exact_upto(seq) == sequence.exact, name(seq) + "another exact_upto");
  check_rows(seq, sequence, 0);
  if (window_layer_) check_rows(seq, sequence, *window_layer_);
  std::size_t at = 0;
  for (const Run& run : cache_->runs(seq))
    for (Pos position = run.first; position < run.end(); ++position, ++at)
      require(at < sequence.items.size() && sequence.items[at].position == position,
              name(seq) + "other positions");
  require(at == sequence.items.size(), name(seq) + "tokens without a run");
  check_matches(seq, sequence);
}

void CacheRun::check_matches(SeqId seq, const Sequence& sequence) {
  const auto exact = static_cast<std::size_t>(sequence.exact);
  const std::vector<Token> tokens = sequence.ids(exact);
  const std::uint32_t matched = cache_->match({sequence.name_space}, tokens);
  require(cache_->stored({sequence.name_space}, tokens) == exact, name(seq) + "its exact tokens are gone");
  const bool can_go_on = !forgets() || sequence.exact == sequence.end();
  require(can_go_on ? matched == exact : matched <= exact, name(seq) + "its exact tokens do not match");
}

// In the pool of a window a sequence has its last tokens, as far back as its next one sees.
void CacheRun::check_rows(SeqId seq, const Sequence& sequence, std::uint32_t layer) {
  const Cache::RowValues rows = cache_->read_rows(seq, layer, std::nullopt);
  const std::size_t all = sequence.items.size();
  require(layer == 0 ? rows.rows == all : rows.rows <= all, name(seq) + "another number of rows");
  std::vector<float> k, v;
  for (std::size_t i = 0; i < all; ++i) {
    const Item& item = sequence.items[i];
    if (i < all - rows.rows) {
      require(!visible(item.position, sequence.end(), window_), name(seq) + "cells of its window are gone");
      continue;
    }
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
