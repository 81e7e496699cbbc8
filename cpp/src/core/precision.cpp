#include "pykv/precision.h"

#include <string>

#include "pykv/errors.h"

namespace pykv {

Precision parse_precision(std::string_view name) {
  for (const Precision precision : {Precision::fastest, Precision::fast, Precision::exact})
    if (name == precision_name(precision)) return precision;
  throw InvalidArgument("[Precision] \"" + std::string(name.substr(0, 40)) +
                        "\" is not a precision; use exact, fast or fastest");
}

const char* precision_name(Precision precision) {
  switch (precision) {
    case Precision::fastest:
      return "fastest";
    case Precision::fast:
      return "fast";
    default:
      return "exact";
  }
}

}  // namespace pykv
