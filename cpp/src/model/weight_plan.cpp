#include "model/weight_plan.h"

#include <set>
#include <string_view>

#include "model/printable.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

std::string prefix(const GgufFile& file) {
  return "[Model.load] " + printable(file.path(), 4096) + ": tensor ";
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string out = "[";
  for (const std::uint64_t extent : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(extent);
  return out + "]";
}

std::string weight_types() {
  std::string out;
  for (const DTypeTraits& type : all_dtypes())
    if (type.for_weights) out += (out.empty() ? "" : ", ") + std::string(type.name);
  return out;
}

bool has_shape(const GgufFile::Tensor& tensor, std::uint64_t rows, std::uint64_t cols) {
  std::uint64_t others = 1;  // cannot overflow: the reader bounds the product of all extents
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) others *= tensor.shape[i];
  return tensor.shape[0] == cols && others == rows;
}

}  // namespace

const GgufFile::Tensor& WeightPlan::checked(const std::string& name, std::uint32_t rows,
                                            std::uint32_t cols) const {
  const GgufFile::Tensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr)
    throw CorruptModel(prefix(file_) + printable(name) + " is missing; download or convert the model again");
  if (!has_shape(*tensor, rows, cols))
    throw CorruptModel(prefix(file_) + printable(name) + " has shape " + shape_text(tensor->shape) +
                       ", the metadata asks for [" + std::to_string(cols) + ", " + std::to_string(rows) +
                       "]; download or convert the model again");
  if (!tensor->type || !traits(*tensor->type).for_weights)
    throw UnsupportedModel(prefix(file_) + printable(name) + " has type " + tensor->type_name +
                           ", supported weight types are " + weight_types() +
                           "; use a file with one of these types");
  return *tensor;
}

void WeightPlan::add(const GgufFile::Tensor& tensor, std::uint32_t rows, std::uint32_t cols, WeightId& into) {
  items_.push_back({&tensor, rows, cols, &into});
  parameters_ += std::uint64_t{rows} * cols;
}

void WeightPlan::want(const std::string& name, std::uint32_t rows, std::uint32_t cols, WeightId& into) {
  add(checked(name, rows, cols), rows, cols, into);
}

void WeightPlan::want_vector(const std::string& name, std::uint32_t cols, WeightId& into) {
  const GgufFile::Tensor& tensor = checked(name, 1, cols);
  if (tensor.type != DType::f32 && tensor.type != DType::f16)
    throw UnsupportedModel(prefix(file_) + printable(name) + " has type " + tensor.type_name +
                           ", a norm may be f32 or f16; use a file with one of these types");
  add(tensor, 1, cols, into);
}

void WeightPlan::refuse_others() const {
  std::set<const GgufFile::Tensor*> wanted;
  for (const Item& item : items_) wanted.insert(item.tensor);
  for (const GgufFile::Tensor& tensor : file_.tensors())
    if (!wanted.contains(&tensor))
      throw UnsupportedModel(prefix(file_) + printable(tensor.name) +
                             " belongs to a feature that is not supported, and leaving it out would change "
                             "the answers; use another model");
}

void WeightPlan::load(Backend& backend) const {
  constexpr std::size_t kDropEvery = 64U << 20U;  // so that file and weights are not both resident
  std::size_t mapped = 0;
  for (const Item& item : items_) {
    *item.into = backend.create_weight(*item.tensor->type, item.rows, item.cols, item.tensor->bytes);
    mapped += item.tensor->bytes.size();
    if (mapped < kDropEvery) continue;
    file_.drop_pages();
    mapped = 0;
  }
}

}  // namespace pykv
