// Floor 4. The supported architectures. Each is one small file in architectures/, which says
// how it differs from the others, and a line in the table of architecture.cpp.
#pragma once

#include "model/decoder_spec.h"
#include "pykv/gguf.h"

namespace pykv {

struct Architecture {
  const char* name;  // general.architecture, and the prefix of the metadata keys
  DecoderSpec decoder;
};

// Throws UnsupportedModel naming the architecture and the supported ones.
const Architecture& find_architecture(const GgufFile& file);

extern const Architecture kGemma2;
extern const Architecture kGemma3;
extern const Architecture kGptOss;
extern const Architecture kGraniteHybrid;
extern const Architecture kLfm2;
extern const Architecture kLlama;
extern const Architecture kMamba2;
extern const Architecture kOlmo2;
extern const Architecture kPhi3;
extern const Architecture kQwen2;
extern const Architecture kQwen3;

}  // namespace pykv
