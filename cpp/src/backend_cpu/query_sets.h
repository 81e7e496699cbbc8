// Floor 2. The queries of a block as the scores need them: prepared as they are, or first turned by
// RoPE(-r) for K that was stored r positions lower. RoPE is relative: turning the query is the same as
// turning K, and stored K is never touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "pykv/backend.h"
#include "pykv/block_layout.h"

namespace pykv::cpu {

// The distinct rotations of a batch, and how to turn a head against each. Kept from call to call:
// the layers of a step have the same ones.
class Rotations {
 public:
  static constexpr std::uint32_t kNone = 0;  // the index of rotation 0

  void set(const RopeParams* rope, std::span<const Segment> segments);  // throws bad_alloc

  std::uint32_t size() const { return static_cast<std::uint32_t>(values_.size()) + 1; }
  std::uint32_t index(Pos rotation) const;  // O(log size)
  void turn_back(float* head, std::uint32_t index) const;

 private:
  RopeParams rope_;
  std::vector<Pos> values_;  // ascending, without 0: index - 1
  std::vector<float> cos_sin_;
  std::vector<Pos> found_;  // of the last call
};

// How a head of a query becomes what scores read: transformed, where K is stored so, and prepared.
struct QueryForm {
  const kernels::Kernels* kernels = nullptr;
  const BlockLayout::LayerPlace* place = nullptr;
  void (*prepare)(const kernels::QueryTask& task) = nullptr;

  // Whether scores read heads as they are.
  bool plain() const { return prepare == kernels->prepare && place->k.hadamard == 0; }
  std::size_t floats() const { return kernels::prepared_floats(place->k.dim); }
  void make(const float* head, float* prepared) const;
};

// One thread's sets of queries. A few distinct rotations of a block are kept, so that
// each is computed once however often segments alternate.
class QuerySets {
 public:
  // Before a call's threads start: forgets the last block, makes room. Throws bad_alloc.
  void begin_call(const QueryForm& form, const Rotations& rotations);
  // Begins a block of queries.
  void begin_block(std::uint32_t count);
  // Query i's head, and what the form makes of it.
  void set(std::uint32_t i, const float* head, const float* prepared) {
    heads_[i] = head;
    prepared_[i] = prepared;
  }
  // The block's queries for K that was turned by the rotation with this index.
  const float* const* get(const Rotations& rotations, std::uint32_t index);

 private:
  static constexpr std::uint32_t kKept = 4;
  static constexpr std::uint32_t kUnused = 0xffffffff;

  QueryForm form_;
  std::uint32_t count_ = 0;
  std::uint32_t next_ = 0;        // set to be overwritten
  std::uint32_t indices_[kKept];  // rotation of each set, or kUnused
  std::vector<float> turned_;     // [sets][kQueryBlock][floats of the form]
  const float* heads_[kernels::kQueryBlock];
  const float* prepared_[kernels::kQueryBlock];
  const float* sets_[kKept][kernels::kQueryBlock];
};

}  // namespace pykv::cpu
