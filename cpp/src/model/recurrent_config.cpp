#include "model/recurrent_config.h"

#include <algorithm>
#include <string>

namespace pykv {
namespace {

constexpr std::uint32_t kMaxTaps = 32;
constexpr std::uint64_t kMaxStateElements = std::uint64_t{1} << 28;

void read_scan(ConfigReader& reader, ModelConfig& config) {
  RecurrentSizes& sizes = config.recurrent;
  const std::uint32_t inner = reader.positive("ssm.inner_size", 1U << 20U);
  sizes.heads = reader.positive("ssm.time_step_rank", 65536);
  sizes.groups = reader.positive("ssm.group_count", 65536, 1);
  sizes.state_size = reader.positive("ssm.state_size", 4096);
  sizes.taps = reader.positive("ssm.conv_kernel", kMaxTaps);
  if (inner % sizes.heads != 0 || sizes.heads % sizes.groups != 0)
    reader.corrupt("ssm.inner_size " + std::to_string(inner) + ", " + std::to_string(sizes.heads) +
                   " heads in " + std::to_string(sizes.groups) +
                   " groups: groups must divide heads, and heads the size");
  if (std::uint64_t{inner} * sizes.state_size > kMaxStateElements)
    reader.corrupt("a state of " + std::to_string(inner) + " times " + std::to_string(sizes.state_size) +
                   " elements in a layer; the limit is " + std::to_string(kMaxStateElements));
  sizes.head_dim = inner / sizes.heads;
  const std::uint64_t channels = inner + 2 * std::uint64_t{sizes.groups} * sizes.state_size;
  if (channels > (1U << 24U)) reader.corrupt(std::to_string(channels) + " channels of ssm_conv1d");
  sizes.channels = static_cast<std::uint32_t>(channels);
}

}  // namespace

std::uint32_t read_layer_kinds(const GgufFile& file, ConfigReader& reader, const DecoderSpec& spec,
                               ModelConfig& config) {
  constexpr const char* kKey = "attention.head_count_kv";
  const std::string name = config.architecture + "." + kKey;
  if (spec.recurrent == Recurrent::none) return 0;
  if (!spec.attention) config.recurrent.layers.assign(config.layers, true);
  const auto size = file.array_size(name);
  if (!spec.attention || !size) return 0;
  const std::vector<std::int64_t> listed = file.integer_array(name);
  if (listed.size() != config.layers)
    reader.corrupt("metadata key '" + name + "' lists " + std::to_string(listed.size()) + " layers of " +
                   std::to_string(config.layers));
  const std::int64_t most = *std::max_element(listed.begin(), listed.end());
  for (const std::int64_t heads : listed)
    if (heads != 0 && (heads != most || heads < 0 || heads > 4096))
      reader.unsupported("metadata key '" + name + "' has layers with " + std::to_string(heads) + " and " +
                         std::to_string(most) + " heads");
  if (most == 0) reader.unsupported("metadata key '" + name + "' lists no layer with attention");
  const bool any = std::find(listed.begin(), listed.end(), 0) != listed.end();
  for (std::uint32_t i = 0; any && i < config.layers; ++i) config.recurrent.layers.push_back(listed[i] == 0);
  reader.mark_read(kKey);
  return static_cast<std::uint32_t>(most);
}

void read_recurrent(ConfigReader& reader, const DecoderSpec& spec, ModelConfig& config) {
  if (config.recurrent.layers.empty()) return;
  if (spec.recurrent == Recurrent::mamba2) return read_scan(reader, config);
  config.recurrent.taps = reader.positive("shortconv.l_cache", kMaxTaps);
  config.recurrent.channels = config.width;
}

RecurrentTable recurrent_table(const ModelConfig& config) {
  const RecurrentSizes& sizes = config.recurrent;
  RecurrentTable table(sizes.layers.size());
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    if (!sizes.layers[i]) continue;
    table[i].conv_elements = (sizes.taps - 1) * sizes.channels;
    table[i].scan_elements = sizes.inner() * sizes.state_size;
  }
  return table;
}

}  // namespace pykv
