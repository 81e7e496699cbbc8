#include "pools.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

using namespace pykv;

namespace control_plane {
namespace {

constexpr std::uint32_t kDim = 8;
constexpr std::uint32_t kChainTokens = 900'000;
constexpr std::uint32_t kBatch = 100;  // forks that take one step together

CacheConfig config_of(const std::string& shape) {
  LayerSpec layer;
  layer.kv_heads = 1;
  layer.k_dim = layer.v_dim = kDim;
  CacheConfig out;
  out.layers = {layer};
  if (shape == "windows") {
    layer.pool = 1;
    layer.window_kind = WindowKind::standard;
    layer.window_size = kWindow;
    out.layers.push_back(layer);
  }
  out.cells = kCells;
  return out;
}

void make_tree(Pool& pool) {
  constexpr std::uint32_t kRoots = 1000, kRootTokens = 60, kLeaves = 98;
  for (std::uint32_t root = 0; root < kRoots; ++root) {
    const SeqId seq = pool.cache->create();
    pool.append(seq, pool.text.next(kRootTokens));
    pool.add_leaves(seq, kLeaves);
    pool.cache->erase(seq);
  }
  // The prompt goes through 64 nodes.
  pool.source = pool.cache->create();
  for (std::uint32_t at = 0; at < kPrompt; at += kBlockCells) {
    const auto part = pool.text.next(kBlockCells);
    pool.append(pool.source, part);
    pool.prompt.insert(pool.prompt.end(), part.begin(), part.end());
    if (at + kBlockCells < kPrompt) pool.add_leaves(pool.source, 1);
  }
}

void make_chain(Pool& pool) {
  pool.source = pool.cache->create();
  const auto tokens = pool.text.next(kChainTokens);
  for (std::uint32_t i = 0; i < kChainTokens; ++i) {
    pool.append(pool.source, std::span(tokens).subspan(i, 1));
    if (i % 500 == 499) pool.add_leaves(pool.source, 1);
  }
  pool.prompt.assign(tokens.begin(), tokens.begin() + kPrompt);
}

void make_windows(Pool& pool) {
  pool.prompt = pool.text.next(kPrompt);
  pool.source = pool.cache->create();
  pool.append(pool.source, pool.prompt);
}

void make_star(Pool& pool) {
  pool.prompt = pool.text.next(kPrompt);
  pool.source = pool.cache->create();
  pool.append(pool.source, pool.prompt);
  pool.add_leaves(pool.source, 100'000);
}

void make_comb(Pool& pool) {
  pool.prompt = pool.text.next(kPrompt);
  pool.source = pool.cache->create();
  for (std::uint32_t i = 0; i < kPrompt; ++i) {
    pool.cache->fork(pool.source);
    pool.append(pool.source, std::span(pool.prompt).subspan(i, 1));
  }
  const SeqId others = pool.cache->create();
  pool.append(others, pool.text.next(64));
  pool.add_leaves(others, 20'000);
}

// Erases every second of the sequences that hold one cell each, by the parity of the cell.
void erase_half(Pool& pool, std::vector<SeqId>& ones, CellIndex parity) {
  for (SeqId& seq : ones) {
    if (seq == SeqId{} || pool.cache->runs(seq).front().cell % 2 != parity) continue;
    pool.cache->erase(seq);
    seq = {};
  }
}

void fill_holes(Pool& pool, std::uint32_t sequences, std::uint32_t tokens) {
  for (std::uint32_t i = 0; i < sequences; ++i) {
    const SeqId seq = pool.cache->create();
    pool.append(seq, pool.text.next(tokens));
    pool.cache->erase(seq);
  }
}

void make_singles(Pool& pool) {
  std::vector<SeqId> ones;
  while (pool.cache->stats().cells_free > 0) {
    std::vector<StepRequest> requests;
    const auto count = std::min<std::uint64_t>(1000, pool.cache->stats().cells_free);
    for (std::uint64_t i = 0; i < count; ++i) requests.push_back({pool.cache->create(), 1, {}});
    pool.append(requests);
    for (const StepRequest& request : requests) ones.push_back(request.seq);
  }
  erase_half(pool, ones, 0);
  fill_holes(pool, 450, 1000);
  pool.prompt = pool.text.next(kPrompt);
  pool.source = pool.cache->create();
  pool.append(pool.source, pool.prompt);
  erase_half(pool, ones, 1);
  fill_holes(pool, 450, 1000);
  pool.add_leaves(pool.source, 2000);
}

}  // namespace

std::vector<Token> Text::next(std::uint32_t length) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), next_);
  next_ += static_cast<Token>(length);
  return tokens;
}

Pool::Pool(std::string shape_name)
    : name(std::move(shape_name)),
      config(config_of(name)),
      cache(std::make_unique<Cache>(config, backend)),
      zeros(backend.create_buffer(2 * kPrompt, kDim)) {}

void Pool::write(Step& step) {
  const Rows rows{zeros, 0, step.rows(), kDim};
  for (std::uint32_t layer = 0; layer < config.layers.size(); ++layer) step.write(layer, rows, rows);
}

void Pool::append(std::span<const StepRequest> requests) {
  std::optional<Plan> plan = cache->plan(requests);
  if (!plan) throw std::runtime_error("the pool is full");
  Step step = cache->commit(std::move(*plan));
  write(step);
  step.finish();
}

void Pool::append(SeqId seq, std::span<const Token> tokens) {
  const StepRequest request{seq, static_cast<std::uint32_t>(tokens.size()), tokens};
  append({&request, 1});
}

void Pool::append(SeqId seq, std::uint32_t count) {
  const StepRequest request{seq, count, {}};
  append({&request, 1});
}

void Pool::add_leaves(SeqId seq, std::uint32_t count) {
  while (count > 0) {
    const std::uint32_t batch = std::min(count, kBatch);
    std::vector<std::vector<Token>> tokens;
    std::vector<StepRequest> requests;
    for (std::uint32_t i = 0; i < batch; ++i) tokens.push_back(text.next(kLeaf));
    for (const auto& ids : tokens) requests.push_back({cache->fork(seq), kLeaf, ids});
    append(requests);
    for (const StepRequest& request : requests) cache->erase(request.seq);
    count -= batch;
  }
}

std::vector<std::string> shapes() { return {"tree", "chain", "star", "singles", "comb", "windows"}; }

std::unique_ptr<Pool> make_pool(const std::string& shape) {
  auto pool = std::make_unique<Pool>(shape);
  if (shape == "tree")
    make_tree(*pool);
  else if (shape == "chain")
    make_chain(*pool);
  else if (shape == "star")
    make_star(*pool);
  else if (shape == "singles")
    make_singles(*pool);
  else if (shape == "comb")
    make_comb(*pool);
  else if (shape == "windows")
    make_windows(*pool);
  else
    throw std::runtime_error("no shape is called " + shape);
  for (std::uint32_t i = 0; i < kSessions; ++i) pool->sessions.push_back(pool->cache->fork(pool->source));
  return pool;
}

}  // namespace control_plane
