#include "model/weight_plan.h"

#include <cstring>
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
  for (const DTypeTraits& type : all_dtypes()) out += (out.empty() ? "" : ", ") + std::string(type.name);
  return out;
}

bool has_shape(const GgufFile::Tensor& tensor, Shape shape) {
  std::uint64_t others = 1;  // cannot overflow: the reader bounds the product of all extents
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) others *= tensor.shape[i];
  return tensor.shape[0] == shape.cols && others == shape.rows;
}

}  // namespace

const GgufFile::Tensor& WeightPlan::checked(const std::string& name, Shape shape) const {
  const GgufFile::Tensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr)
    throw CorruptModel(prefix(file_) + printable(name) + " is missing; download or convert the model again");
  if (!has_shape(*tensor, shape))
    throw CorruptModel(prefix(file_) + printable(name) + " has shape " + shape_text(tensor->shape) +
                       ", the metadata asks for [" + std::to_string(shape.cols) + ", " +
                       std::to_string(shape.rows) + "]; download or convert the model again");
  if (!tensor->type)
    throw UnsupportedModel(prefix(file_) + printable(name) + " has type " + tensor->type_name +
                           ", supported weight types are " + weight_types() +
                           "; use a file with one of these types");
  return *tensor;
}

void WeightPlan::add(const GgufFile::Tensor& tensor, Shape shape, std::uint64_t first_byte, WeightId& into) {
  const std::size_t bytes = row_bytes(*tensor.type, shape.cols) * shape.rows;
  items_.push_back({&tensor, tensor.bytes.subspan(first_byte, bytes), shape, &into});
  parameters_ += std::uint64_t{shape.rows} * shape.cols;
}

void WeightPlan::want(const std::string& name, Shape shape, WeightId& into, RowRange part) {
  const GgufFile::Tensor& tensor = checked(name, shape);
  const std::uint32_t count = part.count == 0 ? shape.rows : part.count;
  add(tensor, {count, shape.cols}, row_bytes(*tensor.type, shape.cols) * part.first, into);
}

const GgufFile::Tensor& WeightPlan::checked_vector(const std::string& name, Shape shape) const {
  const GgufFile::Tensor& tensor = checked(name, shape);
  if (traits(*tensor.type).block_elements == 1) return tensor;
  throw UnsupportedModel(prefix(file_) + printable(name) + " has type " + tensor.type_name +
                         ", a norm or bias may be of a type without blocks, as F32; use such a file");
}

void WeightPlan::want_flat(const std::string& name, Shape shape, WeightId& into) {
  add(checked_vector(name, shape), {1, shape.rows * shape.cols}, 0, into);
}

void WeightPlan::want_vector(const std::string& name, Shape shape, WeightId& into, RowRange part) {
  const GgufFile::Tensor& tensor = checked_vector(name, shape);
  const std::uint32_t count = part.count == 0 ? shape.cols : part.count;
  add(tensor, {1, count}, row_bytes(*tensor.type, part.first), into);
}

std::vector<float> WeightPlan::take_floats(const std::string& name, std::uint32_t count) {
  const GgufFile::Tensor& tensor = checked(name, {1, count});
  if (tensor.type != DType::f32)
    throw UnsupportedModel(prefix(file_) + printable(name) + " has type " + tensor.type_name +
                           ", it may be F32; use such a file");
  std::vector<float> values(count);
  std::memcpy(values.data(), tensor.bytes.data(), count * sizeof(float));
  parameters_ += count;
  allow(name);
  return values;
}

void WeightPlan::refuse_others() const {
  std::set<const GgufFile::Tensor*> known;
  for (const Item& item : items_) known.insert(item.tensor);
  for (const std::string& name : allowed_) known.insert(file_.find_tensor(name));
  for (const GgufFile::Tensor& tensor : file_.tensors())
    if (!known.contains(&tensor))
      throw UnsupportedModel(prefix(file_) + printable(tensor.name) +
                             " belongs to a feature that is not supported, and leaving it out would change "
                             "the answers; use another model");
}

void WeightPlan::load(Backend& backend, const ModelOptions& options) const {
  std::uint64_t all = 0, done = 0;
  for (const Item& item : items_) all += item.bytes.size();
  for (const Item& item : items_) {
    if (options.progress) options.progress(done, all);
    done += item.bytes.size();
    *item.into = backend.create_weight(*item.tensor->type, item.shape.rows, item.shape.cols, item.bytes,
                                       options.precision);
    file_.drop_pages(item.bytes);
  }
  if (options.progress) options.progress(all, all);
}

}  // namespace pykv
