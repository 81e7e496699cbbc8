#include "model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "model/printable.h"

namespace pykv {
namespace {

using Frequencies = std::vector<double>;  // radians per position, one per pair

// The values of a tensor of `count` positive numbers; empty if the file has none.
std::vector<float> read_divisors(const GgufFile& file, const ConfigReader& reader, const char* name,
                                 std::size_t count) {
  const GgufFile::Tensor* tensor = file.find_tensor(name);
  if (tensor == nullptr) return {};
  if (tensor->type != DType::f32 || tensor->bytes.size() != count * sizeof(float))
    reader.corrupt("tensor " + printable(name) + " is " + tensor->type_name + " of " +
                   std::to_string(tensor->bytes.size()) + " bytes, needed are " + std::to_string(count) +
                   " numbers of type F32");
  std::vector<float> values(count);
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  for (const float value : values)
    if (!(value > 0) || !std::isfinite(value))
      reader.corrupt("tensor " + printable(name) + " holds " + std::to_string(value) +
                     ", its numbers must be finite and above 0");
  return values;
}

// The divisors that count for sequences of up to `context` tokens.
std::vector<float> choose_divisors(const GgufFile& file, const ConfigReader& reader, std::size_t pairs,
                                   bool beyond_original) {
  const std::vector<float> plain = read_divisors(file, reader, kRopeFactors, pairs);
  const std::vector<float> longer = read_divisors(file, reader, kRopeFactorsLong, pairs);
  const std::vector<float> shorter = read_divisors(file, reader, kRopeFactorsShort, pairs);
  if (longer.empty() != shorter.empty() || (!plain.empty() && !longer.empty()))
    reader.corrupt("tensors " + printable(kRopeFactorsLong) + " and " + printable(kRopeFactorsShort) +
                   " must come together, and without " + printable(kRopeFactors));
  if (!plain.empty()) return plain;
  return beyond_original ? longer : shorter;
}

// Which pair turns `rotations` times in the original context.
double pair_of(const RopeParams& rope, double original_context, double rotations) {
  return rope.dims * std::log(original_context / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(static_cast<double>(rope.base)));
}

// Where in the ramp each pair lies is a fraction that ext_factor scales: 1 keeps the pair's
// frequency, 0 divides it by `factor`. Returns the magnitude.
float apply_yarn(ConfigReader& reader, double factor, double original_context, const RopeParams& rope,
                 Frequencies& frequencies) {
  if (!(rope.base > 1.0F))
    reader.corrupt("YaRN needs a rope.freq_base above 1, it is " + std::to_string(rope.base));
  const double fast = static_cast<double>(reader.positive_float("rope.scaling.yarn_beta_fast", 32.0));
  const double slow = static_cast<double>(reader.positive_float("rope.scaling.yarn_beta_slow", 1.0));
  const double kept = static_cast<double>(reader.positive_float("rope.scaling.yarn_ext_factor", 1.0));
  if (kept > 1.0)
    reader.corrupt("rope.scaling.yarn_ext_factor is " + std::to_string(kept) + ", the limit is 1");
  const double low = std::max(0.0, std::floor(pair_of(rope, original_context, fast)));
  const double high = std::min(rope.dims - 1.0, std::ceil(pair_of(rope, original_context, slow)));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double along = (static_cast<double>(i) - low) / std::max(0.001, high - low);
    const double share = (1.0 - std::clamp(along, 0.0, 1.0)) * kept;
    frequencies[i] *= share + (1.0 - share) / factor;
  }
  const double magnitude = factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0;
  return reader.positive_float("rope.scaling.yarn_attn_factor", magnitude);
}

double read_factor(ConfigReader& reader) {
  const double factor = static_cast<double>(reader.positive_float_or_zero("rope.scaling.factor"));
  const double older = static_cast<double>(reader.positive_float_or_zero("rope.scale_linear"));
  if (factor != 0.0) return factor;
  return older != 0.0 ? older : 1.0;
}

float apply_scaling(ConfigReader& reader, double original_context, const RopeParams& rope,
                    Frequencies& frequencies) {
  const std::string type = reader.text("rope.scaling.type", "linear");  // the format's default
  const double factor = read_factor(reader);
  if (type == "none") return 1.0F;
  if (type == "yarn") return apply_yarn(reader, factor, original_context, rope, frequencies);
  if (type == "longrope" && factor != 1.0)
    reader.unsupported("longrope with a rope.scaling.factor of " + std::to_string(factor));
  if (type != "linear" && type != "longrope")
    reader.unsupported("metadata key 'rope.scaling.type' is " + printable(type) +
                       ", supported are none, linear, yarn and longrope");
  for (double& frequency : frequencies) frequency /= factor;
  return 1.0F;
}

void read_plain(ConfigReader& reader, ModelConfig& config) {
  config.rope.dims = reader.positive("rope.dimension_count", 65536, config.head_dim);
  if (config.rope.dims > config.head_dim || config.rope.dims % 2 != 0)
    reader.corrupt("rotation of " + std::to_string(config.rope.dims) + " elements in heads of " +
                   std::to_string(config.head_dim));
  config.rope.base = reader.positive_float("rope.freq_base", 10000.0);
}

}  // namespace

void read_rope(const GgufFile& file, ConfigReader& reader, ModelConfig& config) {
  read_plain(reader, config);
  const std::size_t pairs = config.rope.dims / 2;
  const std::uint32_t original = reader.positive("rope.scaling.original_context_length",
                                                 static_cast<std::uint32_t>(kMaxPos), config.trained_context);
  const std::vector<float> divisors = choose_divisors(file, reader, pairs, config.context > original);
  Frequencies plain(pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    plain[i] =
        std::pow(static_cast<double>(config.rope.base), -2.0 * static_cast<double>(i) / config.rope.dims);
  }
  Frequencies scaled = plain;
  for (std::size_t i = 0; i < divisors.size(); ++i) scaled[i] /= static_cast<double>(divisors[i]);
  config.rope_magnitude = apply_scaling(reader, original, config.rope, scaled) *
                          reader.positive_float("rope.scaling.attn_factor", 1.0);
  if (scaled == plain) return;
  for (const double frequency : scaled) config.rope.frequencies.push_back(static_cast<float>(frequency));
  for (const float frequency : config.rope.frequencies)
    if (!std::isfinite(frequency)) reader.corrupt("a scaled rope frequency is not finite");
}

void read_window_rope(ConfigReader& reader, const WindowSpec& spec, ModelConfig& config) {
  config.window_rope = config.rope;
  config.window_rope_magnitude = config.rope_magnitude;
  if (spec.rope_base == 0.0F) return;
  config.window_rope.base = reader.positive_float("rope.freq_base_swa", static_cast<double>(spec.rope_base));
  config.window_rope.frequencies.clear();
  config.window_rope_magnitude = 1.0F;
}

}  // namespace pykv
