// The fuzzers' corpus without a fuzzer: inputs that once led somewhere still lead there well.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "cache_run.h"
#include "check.h"
#include "gguf_run.h"

namespace {

void replay(const char* name, void (*run)(std::span<const std::uint8_t>)) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(PYKV_FUZZ_CORPUS) / name))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  CHECK(files.size() >= 20);
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    try {
      run(bytes);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", path.filename().c_str(), error.what());
      CHECK(!"the corpus runs through");
    }
  }
}

}  // namespace

TEST(operations_of_the_cache) { replay("cache", fuzz::run_cache); }

TEST(files_of_every_kind) { replay("gguf", fuzz::run_gguf); }
