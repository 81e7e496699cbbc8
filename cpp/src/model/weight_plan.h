// Floor 4. Which tensors a model takes from its file. Everything is checked before the
// first weight is created, so that a wrong file leaves the backend as it was.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pykv/backend.h"
#include "pykv/gguf.h"
#include "pykv/model.h"

namespace pykv {

// Of a tensor: GGUF's [cols, rows].
struct Shape {
  std::uint32_t rows = 0;  // outputs; 1 for a vector
  std::uint32_t cols = 0;  // inputs
};

// Rows [first, first + count) of a tensor; count 0: all of them. Of a vector: elements.
struct RowRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

class WeightPlan {
 public:
  explicit WeightPlan(const GgufFile& file) : file_(file) {}  // must outlive the plan

  // Asks for a matrix, or a range of its rows; load() fills `into`. CorruptModel if it is
  // absent or of another shape, UnsupportedModel for its type.
  void want(const std::string& name, Shape shape, WeightId& into, RowRange part = {});
  // A vector, e.g. the gain of a norm or a bias: of a type without blocks.
  void want_vector(const std::string& name, Shape shape, WeightId& into, RowRange part = {});

  // The numbers of a vector of type F32, at once.
  std::vector<float> take_floats(const std::string& name, std::uint32_t count);
  // A vector whose elements the file has as a matrix.
  void want_flat(const std::string& name, Shape shape, WeightId& into);

  // A tensor that something else reads.
  void allow(const std::string& name) { allowed_.push_back(name); }
  // Refuses a file with tensors that nothing asked for: leaving out a bias or an expert would
  // change the result. UnsupportedModel, by name.
  void refuse_others() const;

  std::uint64_t parameters() const { return parameters_; }
  // Creates the weights one after the other. What was read of the file is given back to the
  // system after each, so that at most one tensor is in memory twice.
  void load(Backend& backend, const ModelOptions& options) const;

 private:
  struct Item {
    const GgufFile::Tensor* tensor;
    std::span<const std::byte> bytes;
    Shape shape;
    WeightId* into;
  };
  const GgufFile::Tensor& checked(const std::string& name, Shape shape) const;
  const GgufFile::Tensor& checked_vector(const std::string& name, Shape shape) const;
  void add(const GgufFile::Tensor& tensor, Shape shape, std::uint64_t first_byte, WeightId& into);

  const GgufFile& file_;
  std::vector<Item> items_;
  std::vector<std::string> allowed_;
  std::uint64_t parameters_ = 0;
};

}  // namespace pykv
