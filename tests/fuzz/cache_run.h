// A sequence of operations on a small cache, beside a model of it. Everything that a user can
// see is compared after each, and every invariant is checked. The first byte says what the cache is:
// layers with a window in a pool of their own, recurrent layers, both or neither.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "bytes.h"
#include "cache_model.h"
#include "pykv/cache.h"
#include "pykv/errors.h"

namespace fuzz {

class CacheRun {
 public:
  explicit CacheRun(std::span<const std::uint8_t> given);
  void run();

 private:
  static constexpr std::uint32_t kValueBytes = 8, kTurned = 4;  // elements of K; behind them zeros
  static constexpr std::uint32_t kKDim = 16, kVDim = kValueBytes;
  static constexpr float kTurnError = 1e-4F;  // after a few hundred rewrites in float32
  static constexpr std::uint32_t kCells = 256;
  static constexpr std::uint32_t kStateHalf = kValueBytes / 2;  // elements of a convolution, and of a scan
  static constexpr std::uint32_t kLongestText = 48;
  static constexpr int kMaxOperations = 200;
  static constexpr std::size_t kMaxSequences = 12;

  pykv::CacheConfig config_of(std::uint8_t how);
  bool forgets() const { return window_layer_ || state_layer_; }  // not every token can be continued from
  void operate();
  // Arguments.
  std::optional<pykv::SeqId> pick();  // a sequence, if there is one
  std::vector<Token> text();          // few ids, so that prefixes are met again
  Span span_of(const Sequence& sequence);
  bool is_busy(pykv::SeqId seq) const;  // in the open step
  // Runs `change`, which is refused, if the sequence is in the open step.
  template <class Change>
  bool allowed(pykv::SeqId seq, Change change) {
    try {
      change();
    } catch (const pykv::Busy&) {
      require(is_busy(seq), name(seq) + "busy without a step");
      return false;
    }
    require(!is_busy(seq), name(seq) + "changed in the open step");
    return true;
  }
  // The same; or it is refused because what the next token needs would be missing.
  template <class Change>
  bool possible(pykv::SeqId seq, Change change) {
    try {
      return allowed(seq, change);
    } catch (const pykv::Unsupported&) {
      require(forgets(), name(seq) + "a change is refused though nothing is forgotten");
      return false;
    }
  }
  static std::string name(pykv::SeqId seq) { return "sequence " + std::to_string(seq.value) + ": "; }

  // Operations.
  void create();
  void open();
  void fork();
  void clear();
  void erase();
  void keep();
  void remove();
  void copy();
  void shift();
  void divide();
  void begin_step();
  void end_step();
  void space();
  void write_rows();
  void attend(std::uint32_t layer, pykv::Rows q, pykv::Rows out);
  static std::vector<double> mean_of_seen(const std::vector<Item>& items, std::size_t query,
                                          pykv::Window window);
  bool has_room(std::uint64_t rows, std::uint64_t requests) const;
  // Of caches that forget.
  void rewind();
  void mark();
  void room();
  void pass_states();
  static void put_state(const Sequence& sequence, std::vector<float>& states);

  // The rows that stand for an item; its K after a move.
  void put_k(const Item& item, pykv::Pos moved, std::vector<float>& rows) const;
  static void put_v(const Item& item, std::vector<float>& rows);

  // Comparisons.
  void check();
  void check_sequence(pykv::SeqId seq, const Sequence& sequence);
  void check_rows(pykv::SeqId seq, const Sequence& sequence, std::uint32_t layer);
  void check_matches(pykv::SeqId seq, const Sequence& sequence);
  void check_opened(const pykv::Cache::Opened& opened, const std::vector<Token>& tokens,
                    pykv::NamespaceId name_space, std::optional<std::uint32_t> limit, std::uint32_t matched);
  void publish(const Sequence& sequence);
  void add(pykv::SeqId seq, Sequence sequence);

  Bytes bytes_;
  double ticks_ = 0;
  pykv::RopeParams rope_;
  pykv::Window window_;
  std::optional<std::uint32_t> window_layer_, state_layer_;
  pykv::Backend backend_{pykv::BackendConfig{1, "scalar"}};
  std::unique_ptr<pykv::Cache> cache_;
  std::map<pykv::SeqId, Sequence> model_;
  std::unordered_set<std::uint64_t> published_;  // values of tokens that were ever exact
  std::optional<pykv::Step> step_;
  std::vector<pykv::SeqId> step_order_;
  std::map<pykv::SeqId, Sequence> after_step_;  // its sequences as finish() will leave them
};

void run_cache(std::span<const std::uint8_t> bytes);  // throws std::logic_error, or what the cache throws

}  // namespace fuzz
