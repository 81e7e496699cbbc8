#include "model/architecture.h"

#include <array>
#include <string>

#include "model/printable.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

const std::array kArchitectures{&kGemma2, &kGemma3, &kGptOss, &kGraniteHybrid, &kLfm2, &kLlama,
                                &kMamba2, &kOlmo2,  &kPhi3,   &kQwen2,         &kQwen3};

}  // namespace

const Architecture& find_architecture(const GgufFile& file) {
  const std::string name = file.string_value("general.architecture");
  std::string supported;
  for (const Architecture* architecture : kArchitectures) {
    if (name == architecture->name) return *architecture;
    supported += (supported.empty() ? "" : ", ") + std::string(architecture->name);
  }
  throw UnsupportedModel("[Model.load] " + printable(file.path(), 4096) + " has architecture " +
                         printable(name) + ", supported are: " + supported + "; use a model of one of these");
}

}  // namespace pykv
