// Floor 4. Which tensors a model takes from its file. Everything is checked before the
// first weight is created, so that a wrong file leaves the backend as it was.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pykv/backend.h"
#include "pykv/gguf.h"

namespace pykv {

class WeightPlan {
 public:
  explicit WeightPlan(const GgufFile& file) : file_(file) {}  // must outlive the plan

  // Asks for matrix `name` with `rows` outputs and `cols` inputs; load() fills `into`.
  // CorruptModel if it is absent or of another shape, UnsupportedModel for its type.
  void want(const std::string& name, std::uint32_t rows, std::uint32_t cols, WeightId& into);
  // A vector, e.g. the gain of a norm: F32 or F16.
  void want_vector(const std::string& name, std::uint32_t cols, WeightId& into);

  // Refuses a file with tensors that nothing asked for: leaving out a bias, a rope factor
  // or an expert would change the result. UnsupportedModel, by name.
  void refuse_others() const;

  std::uint64_t parameters() const { return parameters_; }
  void load(Backend& backend) const;

 private:
  struct Item {
    const GgufFile::Tensor* tensor;
    std::uint32_t rows, cols;
    WeightId* into;
  };
  const GgufFile::Tensor& checked(const std::string& name, std::uint32_t rows, std::uint32_t cols) const;
  void add(const GgufFile::Tensor& tensor, std::uint32_t rows, std::uint32_t cols, WeightId& into);

  const GgufFile& file_;
  std::vector<Item> items_;
  std::uint64_t parameters_ = 0;
};

}  // namespace pykv
