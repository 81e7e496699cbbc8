// What a sequence has stored: as values, and as bytes.
#include "cache/cache_impl.h"

namespace pykv {
namespace {

// The cells of the tokens in a span, in order, and how far each token was moved since its K
// was stored.
struct Tokens {
  std::vector<CellIndex> cells;
  std::vector<Pos> moved;
};

Tokens tokens_of(const RunList& runs, Span span) {
  Tokens tokens;
  runs.for_each(span, [&](const Run& run) {
    for (std::uint32_t i = 0; i < run.length; ++i) tokens.cells.push_back(run.cell + i);
    tokens.moved.insert(tokens.moved.end(), run.length, run.rotation);
  });
  return tokens;
}

const LayerSpec& layer_of(const Cache::Impl& cache, std::uint32_t layer, const char* method) {
  if (layer < cache.config.layers.size()) return cache.config.layers[layer];
  throw InvalidArgument(where(method) + "layer is " + std::to_string(layer) + ", the cache has " +
                        std::to_string(cache.config.layers.size()) + " layers");
}

// Only K that depends on positions is ever moved, and then its rope is known.
KeyMove move_of(const Cache::Impl& cache, std::uint32_t layer, const Tokens& tokens) {
  const RopeParams* const rope = cache.rope(layer);
  return {tokens.moved, rope == nullptr ? RopeParams{} : *rope};
}

}  // namespace

Cache::RowValues Cache::read_rows(SeqId seq, std::uint32_t layer, std::optional<Span> span) const {
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  const Impl::Sequence& sequence = c.find(seq, "read_rows");
  const LayerSpec& spec = layer_of(c, layer, "read_rows");
  const Tokens tokens =
      tokens_of(c.runs_of(sequence, spec.pool), checked_span(span, sequence.bounds(), "read_rows"));
  RowValues values{static_cast<std::uint32_t>(tokens.cells.size()), {}, {}};
  values.k.resize(tokens.cells.size() * spec.kv_heads * spec.k_dim);
  values.v.resize(tokens.cells.size() * spec.kv_heads * spec.v_dim);
  c.backend.read_kv(c.pool_of(layer).id, layer, tokens.cells, values.k, values.v, move_of(c, layer, tokens));
  return values;
}

Cache::RowBytes Cache::export_rows(SeqId seq, std::uint32_t layer, std::optional<Span> span) const {
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  const Impl::Sequence& sequence = c.find(seq, "export_rows");
  const LayerSpec& spec = layer_of(c, layer, "export_rows");
  if (spec.kv_from_layer) {
    throw InvalidArgument(where("export_rows") + "layer " + std::to_string(layer) +
                          " stores nothing; export layer " + std::to_string(*spec.kv_from_layer) +
                          ", whose K and V it reads");
  }
  const Tokens tokens =
      tokens_of(c.runs_of(sequence, spec.pool), checked_span(span, sequence.bounds(), "export_rows"));
  RowBytes bytes{static_cast<std::uint32_t>(tokens.cells.size()), {}, {}};
  bytes.k.resize(tokens.cells.size() * row_bytes(c.config.type_k, std::size_t{spec.kv_heads} * spec.k_dim));
  if (!spec.v_view_of_k)
    bytes.v.resize(tokens.cells.size() * row_bytes(c.config.type_v, std::size_t{spec.kv_heads} * spec.v_dim));
  c.backend.export_rows(c.pool_of(layer).id, layer, tokens.cells, move_of(c, layer, tokens), bytes.k,
                        bytes.v);
  return bytes;
}

std::vector<float> Cache::export_state(SeqId seq, std::uint32_t layer) const {
  const Impl& c = *impl_;
  const auto lock = c.link->lock();
  const Impl::Sequence& sequence = c.find(seq, "export_state");
  layer_of(c, layer, "export_state");
  const RecurrentSpec spec = c.config.recurrent.empty() ? RecurrentSpec{} : c.config.recurrent[layer];
  if (spec == RecurrentSpec{})
    throw InvalidArgument(where("export_state") + "layer " + std::to_string(layer) + " is not recurrent");
  std::vector<float> state(std::size_t{spec.conv_elements} + spec.scan_elements);
  const std::optional<StateSlot> slot = sequence.state.slot();
  if (!slot) return state;
  const std::span<float> all(state);
  c.backend.read_state(c.states.id, *slot, c.states.layout.conv_offset(layer), all.first(spec.conv_elements));
  c.backend.read_state(c.states.id, *slot, c.states.layout.scan_offset(layer),
                       all.subspan(spec.conv_elements));
  return state;
}

}  // namespace pykv
