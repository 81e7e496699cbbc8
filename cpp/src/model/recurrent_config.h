// Floor 4. Which layers of a model are recurrent, and their sizes.
#pragma once

#include "model/config_reader.h"
#include "model/decoder_spec.h"
#include "pykv/model.h"

namespace pykv {

// Reads attention.head_count_kv, if it lists the layers: those with 0 are recurrent. Returns the
// one number of the others; 0: the file does not list them.
std::uint32_t read_layer_kinds(const GgufFile& file, ConfigReader& reader, const DecoderSpec& spec,
                               ModelConfig& config);
// Sizes of the recurrent layers, where there are some.
void read_recurrent(ConfigReader& reader, const DecoderSpec& spec, ModelConfig& config);

}  // namespace pykv
