// A file, well-formed or not, through everything that reads GGUF.
#pragma once

#include <cstdint>
#include <span>

namespace fuzz {

// Reads all metadata and tensors and the model's configuration. What is wrong with a file is
// pykv::Error; anything else is a fault.
void run_gguf(std::span<const std::uint8_t> bytes);

}  // namespace fuzz
