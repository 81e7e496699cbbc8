// dtype.h, layer_table.h, block_layout.h: sizes, refusals, and that no two values of a
// block share a byte.
#include <cstdint>
#include <set>
#include <string>
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

void mark_k(std::vector<bool>& used, const TileLayout& k, std::size_t tile, std::size_t elem) {
  for (std::uint32_t cell = 0; cell < kBlockCells; ++cell) {
    const std::size_t group = tile + cell / kGroupCells * k.group_bytes;
    const std::size_t lane = cell % kGroupCells;
    for (std::uint32_t d = 0; d < k.dim; ++d)
      mark(used, group + k.values_offset + (d * kGroupCells + lane) * elem, elem);
    for (std::uint32_t s = 0; k.type == DType::q8_0 && s < k.dim / 32; ++s)
      mark(used, group + (s * kGroupCells + lane) * 2, 2);
  }
}

void mark_v(std::vector<bool>& used, const TileLayout& v, std::size_t tile, std::size_t elem) {
  for (std::uint32_t cell = 0; cell < kBlockCells; ++cell) {
    for (std::uint32_t d = 0; d < v.dim; ++d)
      mark(used, tile + v.values_offset + (cell * v.dim + d) * elem, elem);
    for (std::uint32_t s = 0; v.type == DType::q8_0 && s < v.dim / 32; ++s)
      mark(used, tile + (cell * (v.dim / 32) + s) * 2, 2);
  }
}

std::size_t element_size(DType type) { return type == DType::f32 ? 4 : type == DType::f16 ? 2 : 1; }

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
  CHECK(parse_kv_type("f32") == DType::f32);
  CHECK(parse_kv_type("f16") == DType::f16);
  CHECK(parse_kv_type("q8_0") == DType::q8_0);
  CHECK_THROWS(InvalidArgument, parse_kv_type("q4_1"));  // a weight type only
  CHECK_THROWS(InvalidArgument, parse_kv_type(""));
  CHECK_THROWS(InvalidArgument, parse_kv_type("F16"));
  const std::string message = message_of([] { parse_kv_type("q9_9"); });
  CHECK(message.find("q9_9") != std::string::npos);
  CHECK(message.find("f32, f16, q8_0") != std::string::npos);
  CHECK_THROWS(InvalidArgument, traits(static_cast<DType>(99)));
}

TEST(traits_are_in_enum_order) {
  std::size_t i = 0;
  for (const DTypeTraits& t : all_dtypes()) CHECK(static_cast<std::size_t>(t.type) == i++);
  CHECK(i == 9);
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
  CHECK_THROWS(Unsupported, validate(table(1, 1, 264, 64)));
  CHECK_THROWS(Unsupported, validate(table(1, 1, 64, 12)));

  const auto with = [](auto change) {
    LayerTable layers = table(2, 1, 64, 64);
    change(layers[1]);
    return layers;
  };
  CHECK_THROWS(Unsupported, validate(with([](LayerSpec& l) { l.pool = 1; })));
  CHECK_THROWS(Unsupported, validate(with([](LayerSpec& l) { l.sinks = true; })));
  CHECK_THROWS(Unsupported, validate(with([](LayerSpec& l) { l.v_view_of_k = true; })));
  CHECK_THROWS(Unsupported, validate(with([](LayerSpec& l) { l.kv_from_layer = 0; })));
  CHECK_THROWS(InvalidArgument, validate(with([](LayerSpec& l) { l.kv_from_layer = 1; })));
  CHECK_THROWS(InvalidArgument, validate(with([](LayerSpec& l) { l.window_size = 5; })));
  CHECK_THROWS(Unsupported, validate(with([](LayerSpec& l) {
                 l.window_kind = WindowKind::standard;
                 l.window_size = 512;
               })));
}

TEST(no_two_values_share_a_byte_and_tiles_are_aligned) {
  for (const DType k : {DType::f32, DType::f16, DType::q8_0}) {
    for (const DType v : {DType::f32, DType::f16, DType::q8_0}) {
      const BlockLayout layout(table(2, 2, 32, 96), 0, k, v);
      CHECK(layout.block_bytes() % 4096 == 0);
      std::vector<bool> used(layout.block_bytes());
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        const BlockLayout::LayerPlace& place = layout.place(layer);
        for (std::uint32_t head = 0; head < place.kv_heads; ++head) {
          CHECK(place.k_tile(head) % 64 == 0 && place.v_tile(head) % 64 == 0);
          CHECK((place.k_tile(head) + place.k.values_offset) % 64 == 0 && place.k.group_bytes % 64 == 0);
          mark_k(used, place.k, place.k_tile(head), element_size(k));
          mark_v(used, place.v, place.v_tile(head), element_size(v));
        }
      }
    }
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
  CHECK_THROWS(InvalidArgument, BlockLayout(table(1, 1, 64, 64), 0, DType::q4_0, DType::f16));
}

TEST(layers_of_other_pools_have_no_place) {
  LayerTable layers = table(3, 2, 64, 64);
  layers[1].pool = 1;
  const BlockLayout layout(layers, 0, DType::f16, DType::f16);
  CHECK(layout.layer_count() == 3);
  CHECK(layout.place(1).kv_heads == 0);
  CHECK(layout.place(2).offset == layout.place(0).kv_heads * layout.place(0).head_stride());
}
