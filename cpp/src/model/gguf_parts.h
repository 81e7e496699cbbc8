// Floor 4. The files of one model: a single file, or all parts of a split one. Parts lie in
// one folder and are called NAME-00001-of-00003.gguf and so on; each has the metadata keys
// split.no (from 0), split.count and split.tensors.count (of all parts together), the first
// one all other metadata too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/gguf_index.h"
#include "model/mapped_file.h"

namespace pykv::gguf {

struct Part {
  std::string path;
  MappedFile file;
  Index index;

  explicit Part(const std::string& name) : path(name), file(name), index(parse(file.bytes(), name)) {}
};

// The file at `path` and those it belongs with, the first part first. Throws Error naming a
// part that is missing, CorruptModel for parts that do not belong together.
std::vector<std::unique_ptr<Part>> open_parts(const std::string& path);

}  // namespace pykv::gguf
