// The configuration of a decoder: what is read, and what is refused by name.
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "check.h"
#include "gguf_bytes.h"
#include "pykv/errors.h"
#include "pykv/model.h"

using gguf_bytes::TempFile;
using gguf_bytes::Writer;
using pykv::CorruptModel;
using pykv::Error;
using pykv::ModelConfig;
using pykv::UnsupportedModel;

namespace {

using Number = std::uint32_t;

// A header with the given metadata; 10 tensors, the first one the embedding [16, 20].
struct Header {
  std::string architecture = "llama";
  std::map<std::string, Number> numbers{
      {"llama.block_count", 1},          {"llama.context_length", 128},
      {"llama.embedding_length", 16},    {"llama.feed_forward_length", 32},
      {"llama.attention.head_count", 2}, {"llama.attention.head_count_kv", 1},
      {"llama.vocab_size", 20}};
  std::map<std::string, float> floats{{"llama.attention.layer_norm_rms_epsilon", 1e-5F},
                                      {"llama.rope.freq_base", 5000.0F}};
  std::map<std::string, std::string> texts;
  std::map<std::string, bool> flags;
  std::map<std::string, std::vector<Number>> arrays;
  std::uint32_t tokens = 20;

  std::string bytes() const {
    Writer w(10, 2 + numbers.size() + floats.size() + texts.size() + flags.size() + arrays.size());
    w.key("general.architecture", 8).text(architecture);
    for (const auto& [key, value] : numbers) w.key(key, 4).u32(value);
    for (const auto& [key, value] : floats) w.key(key, 6).number(value);
    for (const auto& [key, value] : texts) w.key(key, 8).text(value);
    for (const auto& [key, value] : flags) w.key(key, 7).u8(value ? 1 : 0);
    for (const auto& [key, values] : arrays) {
      w.key(key, 9).u32(4).u64(values.size());
      for (const Number value : values) w.u32(value);
    }
    w.key("tokenizer.ggml.tokens", 9).u32(8).u64(tokens);
    for (std::uint32_t i = 0; i < tokens; ++i) w.text("t" + std::to_string(i));
    w.tensor("token_embd.weight", 16, 20, 0, 0);
    for (int i = 0; i < 9; ++i) w.tensor("other" + std::to_string(i), 8, 1, 0, 1280 + 32 * i);
    return w.pad_to(32).raw(std::string(1280 + 32 * 9, '\0')).bytes();
  }
};

ModelConfig read(const std::function<void(Header&)>& change) {
  Header header;
  change(header);
  const TempFile temp(header.bytes());
  return pykv::read_model_config(pykv::GgufFile(temp.path()));
}

std::string refusal(const std::function<void(Header&)>& change) {
  try {
    read(change);
  } catch (const UnsupportedModel& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(reads_the_numbers) {
  const ModelConfig config = read([](Header&) {});
  CHECK(config.architecture == "llama" && config.layers == 1 && config.width == 16);
  CHECK(config.feed_forward == 32 && config.heads == 2 && config.kv_heads == 1 && config.head_dim == 8);
  CHECK(config.vocab == 20 && config.context == 128);
  CHECK(config.rope.dims == 8 && config.rope.base == 5000.0F && config.rope.interleaved);
  const pykv::LayerTable layers = pykv::layer_table(config);
  CHECK(layers.size() == 1 && layers[0].kv_heads == 1 && layers[0].k_dim == 8 && layers[0].v_dim == 8);
}

TEST(missing_values_have_the_formats_defaults) {
  const ModelConfig config = read([](Header& h) {
    h.numbers.erase("llama.attention.head_count_kv");
    h.numbers.erase("llama.vocab_size");
    h.floats.clear();
  });
  CHECK(config.kv_heads == 2 && config.vocab == 20 && config.rope.base == 10000.0F);
  for (const char* key : {"llama.block_count", "llama.context_length", "llama.embedding_length",
                          "llama.feed_forward_length", "llama.attention.head_count"})
    CHECK_THROWS(CorruptModel, read([&](Header& h) { h.numbers.erase(key); }));
}

TEST(an_unknown_architecture_is_named_with_the_supported_ones) {
  const std::string text = refusal([](Header& h) { h.architecture = "mamba\n"; });
  CHECK(contains(text, "'mamba\\x0a'") && contains(text, "supported are: ") && contains(text, "llama"));
}

TEST(values_that_do_not_fit_together) {
  const std::map<std::string, std::vector<Number>> wrong{
      {"llama.block_count", {0, 11, 0xffffffffU}},      {"llama.context_length", {0, 0x80000000U}},
      {"llama.embedding_length", {0, 0xffffffffU}},     {"llama.feed_forward_length", {0, 0xffffffffU}},
      {"llama.attention.head_count", {0, 0xffffffffU}}, {"llama.attention.head_count_kv", {0, 3, 4}},
      {"llama.rope.dimension_count", {7, 10}},          {"llama.vocab_size", {19, 21}},
  };
  for (const auto& [key, values] : wrong)
    for (const Number value : values)
      CHECK_THROWS(CorruptModel, read([&, name = key](Header& h) { h.numbers[name] = value; }));
  CHECK_THROWS(CorruptModel, read([](Header& h) { h.tokens = 21; }));
  for (const float value :
       {0.0F, -1.0F, 1e-45F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const char* key : {"llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"})
      CHECK_THROWS(CorruptModel, read([&](Header& h) { h.floats[key] = value; }));
}

TEST(features_that_would_change_the_result_are_refused_by_name) {
  for (const char* key : {"llama.expert_count", "llama.attention.sliding_window", "llama.something_new"}) {
    CHECK(contains(refusal([&](Header& h) { h.numbers[key] = 4; }), key));
    read([&](Header& h) { h.numbers[key] = 0; });
  }
  CHECK(contains(refusal([](Header& h) { h.floats["llama.residual_scale"] = 0.5F; }), "residual_scale"));
  CHECK(contains(refusal([](Header& h) { h.flags["llama.attention.causal"] = false; }), "causal"));
  CHECK(contains(refusal([](Header& h) {
                   h.numbers.erase("llama.attention.head_count_kv");
                   h.arrays["llama.attention.head_count_kv"] = {1};
                 }),
                 "differs between layers"));
  CHECK(contains(refusal([](Header& h) { h.numbers["llama.attention.value_length"] = 16; }), "values of 16"));
  CHECK(contains(refusal([](Header& h) {
                   h.numbers["llama.attention.head_count"] = 1;
                   h.numbers["llama.attention.key_length"] = 12;
                   h.numbers["llama.attention.value_length"] = 12;
                 }),
                 "layer"));
}

TEST(scales_have_defaults_and_can_be_given) {
  const ModelConfig plain = read([](Header&) {});
  CHECK(plain.attention_scale == 1.0F / std::sqrt(8.0F) && plain.logit_scale == 1.0F);
  const ModelConfig given = read([](Header& h) {
    h.floats["llama.attention.scale"] = 0.5F;
    h.floats["llama.logit_scale"] = 2.0F;
  });
  CHECK(given.attention_scale == 0.5F && given.logit_scale == 2.0F);
}

namespace {

std::function<void(Header&)> scaling(const char* type, float factor) {
  return [=](Header& h) {
    if (*type != '\0') h.texts["llama.rope.scaling.type"] = type;
    h.floats["llama.rope.scaling.factor"] = factor;
  };
}

}  // namespace

TEST(rope_without_scaling_has_no_frequencies_of_its_own) {
  for (const auto& change : {scaling("none", 8.0F), scaling("linear", 1.0F), scaling("", 0.0F)}) {
    const ModelConfig config = read(change);
    CHECK(config.rope.frequencies.empty() && config.rope_magnitude == 1.0F);
  }
}

TEST(linear_scaling_divides_frequencies) {
  for (const auto& change : {scaling("", 4.0F), scaling("linear", 4.0F)}) {
    const ModelConfig config = read(change);
    CHECK(config.rope.frequencies.size() == 4 && config.rope.frequencies[0] == 0.25F);
    CHECK(config.rope_magnitude == 1.0F);
  }
}

// By hand, of base 5000, 8 elements and an original context of 128: pair 0 turns 20 times in it
// and pair 1 2.4 times, so that the ramp from 32 turns to 1 begins at pair 0 and ends at pair 2.
TEST(yarn_keeps_fast_pairs_and_divides_slow_ones) {
  const ModelConfig config = read(scaling("yarn", 4.0F));
  const auto plain = [](int pair) { return std::pow(5000.0, -0.25 * pair); };
  CHECK(std::abs(config.rope.frequencies[0] - 1.0F) < 1e-6F);
  CHECK(std::abs(config.rope.frequencies[1] / plain(1) - (0.5 + 0.5 / 4)) < 1e-6);
  CHECK(std::abs(config.rope.frequencies[2] / plain(2) - 0.25) < 1e-6);
  CHECK(std::abs(config.rope.frequencies[3] / plain(3) - 0.25) < 1e-6);
  CHECK(std::abs(config.rope_magnitude - (0.1 * std::log(4.0) + 1.0)) < 1e-6);
}

TEST(unknown_scaling_is_refused_by_name) {
  CHECK(contains(refusal(scaling("dynamic", 4.0F)), "'dynamic'"));
  CHECK(contains(refusal(scaling("longrope", 4.0F)), "longrope with a rope.scaling.factor"));
}

TEST(a_smaller_context_may_be_asked_for) {
  const TempFile temp(Header{}.bytes());
  const pykv::GgufFile file(temp.path());
  CHECK(pykv::read_model_config(file, {.context = 100}).context == 100);
  CHECK(pykv::read_model_config(file, {.context = 1000}).context == 128);
}
