// What the layers of a step ask of the backend allocates nothing once its room has grown; of a
// prompt, only each linear layer's place in the program of its rows. Nor does room grow for ever.
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "allocations.h"
#include "check.h"
#include "pykv/backend.h"
#include "pykv/quant.h"

using namespace pykv;

namespace {

constexpr std::uint32_t kDim = 32, kHeads = 2, kWidth = kHeads * kDim, kShared = 300;

LayerTable one_layer() {
  LayerSpec spec;
  spec.kv_heads = kHeads;
  spec.k_dim = spec.v_dim = kDim;
  return {spec};
}

// Four sessions that share a prefix, of which the second half has moved, with `each` new rows.
struct Sessions {
  Backend backend{{.threads = 2, .isa = {}}};
  std::uint32_t rows;
  Rows x, y, z;
  WeightId square, gain;
  PoolId pool;
  std::vector<CellIndex> cells;  // they do not ascend
  std::vector<Pos> positions;
  AttentionBatch batch;
  RopeParams rope{.dims = kDim};

  explicit Sessions(std::uint32_t each) : rows(4 * each) {
    for (Rows* made : {&x, &y, &z}) *made = {backend.create_buffer(rows, kWidth), 0, rows, kWidth};
    backend.fill(x, 0.5F);
    const std::vector<float> w(kWidth * kWidth, 0.01F), g(kWidth, 1.0F);
    std::vector<std::byte> stored(row_bytes(DType::q8_0, w.size()));
    encode_row(DType::q8_0, w, stored);
    square = backend.create_weight(DType::q8_0, kWidth, kWidth, stored);
    gain = backend.create_weight(DType::f32, 1, kWidth, std::as_bytes(std::span(g)));
    pool = backend.create_pool(BlockLayout(one_layer(), 0, DType::f16, DType::f16), 64);
    std::vector<BlockIndex> blocks(64);
    std::iota(blocks.begin(), blocks.end(), 0U);
    backend.commit_blocks(pool, blocks);
    for (std::uint32_t session = 0; session < 4; ++session) add(session, each);
  }

  void add(std::uint32_t session, std::uint32_t each) {
    const auto first = static_cast<std::uint32_t>(batch.segments.size());
    const CellIndex own = kShared + (3 - session) * each;
    batch.segments.push_back({0, 0, kShared / 2, 0, 0});
    batch.segments.push_back({kShared, kShared / 2, kShared / 2, kShared / 2, kShared / 2});
    batch.segments.push_back({2 * kShared, own, each, 0, kShared});
    batch.groups.push_back({session * each, each, 2 * kShared, first, 3, kShared});
    for (std::uint32_t i = 0; i < each; ++i) {
      cells.push_back(own + i);
      positions.push_back(static_cast<Pos>(2 * kShared + i));
    }
  }

  void layer() {
    backend.rms_norm(x, gain, 1e-5F, y);
    backend.linear(square, y, z);
    backend.rope(z, kHeads, rope, positions);
    backend.write_kv(pool, 0, z, y, cells);
    AttentionParams params{.heads = kHeads, .scale = 0.1F, .precision = Precision::fast};
    params.rope = &rope;
    backend.attend(pool, 0, z, y, batch, params);
    backend.linear(square, y, z);
    backend.silu_mul(z, y);
    backend.add(x, z);
    backend.synchronize();
  }
};

}  // namespace

TEST(a_layer_allocates_nothing) {
  Sessions few(1), many(40);
  for (int i = 0; i < 2; ++i) few.layer(), many.layer();
  CHECK(allocations::of([&] { few.layer(); }) == 0);
  CHECK(allocations::of([&] { many.layer(); }) <= 2);
}

TEST(writing_and_never_reading_piles_nothing_up) {
  Sessions many(40);
  const auto write = [&] {
    std::ranges::reverse(many.cells);  // the same cells from other rows
    many.backend.write_kv(many.pool, 0, many.z, many.y, many.cells);
  };
  for (int i = 0; i < 100; ++i) write();
  CHECK(allocations::of([&] {
          for (int i = 0; i < 1000; ++i) write();
        }) == 0);
}
