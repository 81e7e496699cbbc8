// dtype.h, layer_table.h, block_layout.h: sizes, refusals, and that no two values of a
// block share a byte.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "pykv/block_layout.h"
#include "pykv/errors.h"

using namespace pykv;

namespace {

LayerTable table(std::uint32_t layers, std::uint32_t heads, std::uint32_t k_dim, std::uint32_t v_dim) {
  LayerSpec spec;
  spec.kv_heads = heads;
  spec.k_dim = k_dim;
  spec.v_dim = v_dim;
  return LayerTable(layers, spec);
}

std::string message_of(void (*call)()) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Marks [begin, begin + bytes) and fails if a byte is marked twice or outside the block.
void mark(std::vector<bool>& used, std::size_t begin, std::size_t bytes) {
  for (std::size_t i = begin; i < begin + bytes; ++i) {
    CHECK(i < used.size() && !used[i]);
    used.at(i) = true;
  }
}

}  // namespace

TEST(row_bytes_follow_gguf) {
  CHECK(row_bytes(DType::f32, 5) == 20);
  CHECK(row_bytes(DType::f16, 5) == 10);
  CHECK(row_bytes(DType::q8_0, 64) == 68);
  CHECK(row_bytes(DType::q4_1, 32) == 20);
  CHECK(row_bytes(DType::q8_0, 0) == 0);
  CHECK_THROWS(InvalidArgument, row_bytes(DType::q8_0, 33));
}

TEST(kv_types_parse_by_name) {
  for (const DTypeTraits& t : all_dtypes()) {
    if (t.for_kv) {
      CHECK(parse_kv_type(t.name) == t.type);
    } else {
      CHECK_THROWS(InvalidArgument, parse_kv_type(t.name));
    }
  }
  CHECK_THROWS(InvalidArgument, parse_kv_type(""));
  CHECK_THROWS(InvalidArgument, parse_kv_type("F16"));
  const std::string message = message_of([] { parse_kv_type("q9_9"); });
  CHECK(message.find("q9_9") != std::string::npos);
  CHECK(message.find("f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl") != std::string::npos);
  CHECK_THROWS(InvalidArgument, traits(static_cast<DType>(99)));
}

TEST(traits_are_in_enum_order) {
  std::size_t i = 0;
  for (const DTypeTraits& t : all_dtypes()) CHECK(static_cast<std::size_t>(t.type) == i++);
  CHECK(i == kDTypeCount);
}

TEST(layer_table_refuses_nonsense_and_what_is_not_built) {
  validate(table(30, 3, 64, 64));
  validate(table(1, 1024, 8, 256));
  CHECK_THROWS(InvalidArgument, validate({}));
  CHECK_THROWS(InvalidArgument, validate(table(5000, 1, 8, 8)));
  CHECK_THROWS(InvalidArgument, validate(table(1, 0, 64, 64)));
  CHECK_THROWS(InvalidArgument, validate(table(1, 1025, 64, 64)));
  CHECK_THROWS(InvalidArgument, validate(table(1, 1, 0, 64)));
  CHECK_THROWS(InvalidArgument, validate(table(1, 1, 64, 0xffffffff)));
  validate(table(1, 1, 576, 512));
  CHECK_THROWS(Unsupported, validate(table(1, 1, 584, 64)));
  CHECK_THROWS(Unsupported, validate(table(1, 1, 64, 520)));
  CHECK_THROWS(Unsupported, validate(table(1, 1, 64, 12)));

  const auto with = [](auto change) {
    LayerTable layers = table(2, 1, 64, 64);
    change(layers[1]);
    return layers;
  };
  CHECK_THROWS(InvalidArgument, validate(with([](LayerSpec& l) { l.pool = 1; })));
  CHECK_THROWS(InvalidArgument, validate(with([](LayerSpec& l) { l.pool = kMaxPools; })));
  validate(with([](LayerSpec& l) {
    l.sinks = l.v_view_of_k = true;
    l.window_kind = WindowKind::chunked;
    l.window_size = 512;
  }));
  validate(with([](LayerSpec& l) { l.kv_from_layer = 0; }));
  CHECK_THROWS(InvalidArgument, validate(with([](LayerSpec& l) { l.kv_from_layer = 1; })));
  CHECK_THROWS(InvalidArgument, validate(with([](LayerSpec& l) { l.window_size = 5; })));
  CHECK_THROWS(Unsupported, validate(with([](LayerSpec& l) {
                 l.window_kind = WindowKind::symmetric;
                 l.window_size = 512;
               })));
}

TEST(each_window_gets_a_pool_and_pool_0_keeps_all) {
  LayerTable layers = table(5, 1, 64, 64);
  const auto window = [&](std::size_t at, WindowKind kind, std::uint32_t size) {
    layers[at].window_kind = kind;
    layers[at].window_size = size;
  };
  const auto pools = [&] {
    std::vector<std::uint32_t> out;
    const LayerTable made = with_window_pools(layers);
    validate(made);
    for (const LayerSpec& layer : made) out.push_back(layer.pool);
    return out;
  };
  CHECK(pools() == std::vector<std::uint32_t>(5));
  window(0, WindowKind::standard, 512);
  window(2, WindowKind::standard, 512);
  window(3, WindowKind::chunked, 512);
  CHECK(pools() == (std::vector<std::uint32_t>{1, 0, 1, 2, 0}));
  layers[4].kv_from_layer = 0;  // reads all of what a window layer stores
  CHECK(pools() == (std::vector<std::uint32_t>{0, 0, 1, 2, 0}));
  layers[4].kv_from_layer.reset();
  for (const std::size_t at : {1U, 4U}) window(at, WindowKind::standard, 512);
  CHECK(pools() == std::vector<std::uint32_t>(5));

  layers = table(3, 1, 64, 64);
  window(1, WindowKind::standard, 512);
  layers[1].pool = 2;
  CHECK_THROWS(InvalidArgument, validate(layers));  // there is no pool 1
  layers[1].pool = 1;
  validate(layers);
  CHECK(pool_count(layers) == 2 && window_of_pool(layers, 1).size == 512 &&
        window_of_pool(layers, 0).size == 0);
  window(2, WindowKind::standard, 256);
  layers[2].pool = 1;
  CHECK_THROWS(InvalidArgument, validate(layers));
}

TEST(windows_reach_as_far_back_as_they_say) {
  for (const Pos size : {1, 2, 7, 256, 1000000})
    for (const Pos query : {0, 1, 6, 7, 8, 300, kMaxPos - 1})
      for (Pos key = std::max(0, query - 300); key <= query; ++key) {
        const auto n = static_cast<std::uint32_t>(size);
        CHECK(visible(key, query, {}));
        CHECK(visible(key, query, {WindowKind::standard, n}) == (query - key < size));
        CHECK(visible(key, query, {WindowKind::chunked, n}) == (key >= query / size * size));
      }
  CHECK(visible(0, kMaxPos - 1, {WindowKind::standard, 0xffffffff}));
  CHECK(visible(0, kMaxPos - 1, {WindowKind::chunked, 0xffffffff}));
}

TEST(views_and_borrowed_layers_store_nothing_of_their_own) {
  LayerTable layers = table(4, 2, 64, 32);
  layers[1].v_view_of_k = true;
  layers[2].kv_from_layer = 0;
  layers[3].k_dim = 128;
  const BlockLayout layout(layers, 0, DType::f16, DType::q8_0);
  CHECK(layout.bytes_per_cell() == 2 * (128 + 34) + 2 * 128 + 2 * (256 + 34));
  CHECK(layout.place(2).offset == layout.place(0).offset && *layout.place(2).kv_from_layer == 0);
  CHECK(layout.place(1).v.dim == 32 && layout.place(1).v.bytes == 0 && layout.place(1).v_view_of_k);
  CHECK(layout.place(3).offset == layout.place(1).offset + 2 * layout.place(1).k.bytes);
}

TEST(a_view_is_transformed_with_k_and_not_across_its_end) {
  const auto both = [](std::uint32_t k_dim, std::uint32_t v_dim) {
    LayerTable layers = table(1, 1, k_dim, v_dim);
    layers[0].v_view_of_k = true;
    const BlockLayout layout(layers, 0, DType::q8_0, DType::f16);
    CHECK(layout.place(0).v.hadamard == layout.place(0).k.hadamard);
    return layout.place(0).k.hadamard;
  };
  CHECK(both(576, 512) == 64 && both(256, 128) == 128 && both(256, 96) == 0 && both(512, 512) == 512);
}

TEST(tiles_do_not_overlap_and_parts_are_aligned) {
  for (const DTypeTraits& k : all_dtypes()) {
    for (const DTypeTraits& v : all_dtypes()) {
      if (!k.for_kv || !v.for_kv) continue;
      const BlockLayout layout(table(2, 2, 32, 96), 0, k.type, v.type);
      CHECK(layout.block_bytes() % 4096 == 0);
      std::vector<bool> used(layout.block_bytes());
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        const BlockLayout::LayerPlace& place = layout.place(layer);
        CHECK(place.k.group_bytes * 4 == place.k.bytes);
        for (const TileLayout& tile : {place.k, place.v})
          for (const std::size_t offset :
               {tile.fifth_offset, tile.values_offset, tile.group_bytes, tile.bytes})
            CHECK(offset % 64 == 0);
        for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
          CHECK(place.k_tile(head) % 64 == 0 && place.v_tile(head) % 64 == 0);
          mark(used, place.k_tile(head), place.k.bytes);
          mark(used, place.v_tile(head), place.v.bytes);
        }
      }
    }
  }
}

TEST(a_cell_costs_what_its_rows_cost) {
  const LayerTable layers = table(32, 8, 128, 128);
  for (const DTypeTraits& t : all_dtypes()) {
    if (!t.for_kv) continue;
    CHECK(BlockLayout(layers, 0, t.type, t.type).bytes_per_cell() == 32 * 2 * row_bytes(t.type, 8 * 128));
  }
}

TEST(a_cell_of_smollm2_costs_what_the_field_says) {
  const LayerTable layers = table(30, 3, 64, 64);
  CHECK(BlockLayout(layers, 0, DType::f16, DType::f16).bytes_per_cell() == 23040);
  CHECK(BlockLayout(layers, 0, DType::q8_0, DType::q8_0).bytes_per_cell() == 30 * 3 * 2 * 68);
  CHECK(BlockLayout(layers, 0, DType::f16, DType::f16).block_bytes() == 64 * 23040);
}

TEST(quantized_types_need_whole_blocks) {
  CHECK_THROWS(InvalidArgument, BlockLayout(table(1, 1, 40, 64), 0, DType::q8_0, DType::f16));
  CHECK_THROWS(InvalidArgument, BlockLayout(table(1, 1, 64, 40), 0, DType::f16, DType::q8_0));
  CHECK_THROWS(InvalidArgument, BlockLayout(table(1, 1, 80, 64), 0, DType::q4_0, DType::f16));
  const BlockLayout widest(table(1, 1, 576, 512), 0, DType::q5_1, DType::q5_0);
  CHECK(widest.place(0).k.dim == 576 && widest.place(0).v.dim == 512);
  CHECK_THROWS(InvalidArgument, k_tile_layout(DType::bf16, 12));
}

TEST(quantized_sides_are_transformed_where_64_divides_the_head_size) {
  const auto sizes = [](std::uint32_t k_dim, std::uint32_t v_dim, DType k, DType v, bool on = true) {
    const BlockLayout layout(table(1, 1, k_dim, v_dim), 0, k, v, on);
    return std::pair(layout.place(0).k.hadamard, layout.place(0).v.hadamard);
  };
  using Sizes = std::pair<std::uint32_t, std::uint32_t>;
  CHECK(sizes(64, 64, DType::q8_0, DType::q4_0) == Sizes(64, 64));
  CHECK(sizes(128, 128, DType::q8_0, DType::q8_0) == Sizes(128, 64));
  CHECK(sizes(192, 256, DType::iq4_nl, DType::q5_1) == Sizes(64, 64));
  CHECK(sizes(256, 512, DType::q4_1, DType::q5_0) == Sizes(256, 64));
  CHECK(sizes(576, 512, DType::q8_0, DType::q8_0) == Sizes(64, 64));
  CHECK(sizes(96, 96, DType::q8_0, DType::q8_0) == Sizes(0, 0));
  CHECK(sizes(64, 64, DType::f16, DType::q8_0) == Sizes(0, 64));
  CHECK(sizes(64, 64, DType::q8_0, DType::bf16) == Sizes(64, 0));
  CHECK(sizes(64, 64, DType::q8_0, DType::q8_0, false) == Sizes(0, 0));
}

TEST(layers_of_other_pools_have_no_place) {
  LayerTable layers = table(3, 2, 64, 64);
  layers[1].pool = 1;
  const BlockLayout layout(layers, 0, DType::f16, DType::f16);
  CHECK(layout.layer_count() == 3);
  CHECK(layout.place(1).kv_heads == 0);
  CHECK(layout.place(2).offset == layout.place(0).kv_heads * layout.place(0).head_stride());
}
