#include "pykv/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "backend_cpu/impl.h"

namespace pykv {
namespace {

using cpu::refuse;

std::string tier_names() {
  std::string names = "auto";
  for (const kernels::Kernels* tier : kernels::available_kernels()) names += std::string(", ") + tier->name;
  return names;
}

bool is_automatic(const std::string& isa) { return isa.empty() || isa == "auto"; }

// The tier asked for, or else by PYKV_ISA, or else the best one.
const kernels::Kernels* choose_kernels(const std::string& asked) {
  const char* const forced = std::getenv("PYKV_ISA");
  const bool by_variable = is_automatic(asked) && forced != nullptr;
  const std::string isa = by_variable ? forced : asked;
  if (is_automatic(isa)) return kernels::available_kernels().back();
  const kernels::Kernels* tier = kernels::find_kernels(isa);
  if (tier != nullptr) return tier;
  const std::string what = (by_variable ? "PYKV_ISA \"" : "isa \"") + isa.substr(0, 40) + "\" ";
  if (isa == "neon" || isa == "avx2" || isa == "avx512" || isa == "avx512_bf16")
    throw Unsupported("[Backend] " + what + "is not possible on this machine; use one of " + tier_names());
  refuse("Backend", what + "is unknown; use one of " + tier_names());
}

}  // namespace

void cpu::State::start_threads(const char* method, std::uint32_t count) {
  if (count > cpu::kMaxThreads)
    refuse(method, std::to_string(count) + " threads; the limit is " + std::to_string(cpu::kMaxThreads) +
                       ", 0 means the number of usable cores");
  if (count == 0) count = cpu::usable_cores();
  if (threads && threads->threads() == count) return;
  try {
    std::vector<std::unique_ptr<cpu::AttentionWorker>> workers(count);
    for (auto& worker : workers) worker.reset(new cpu::AttentionWorker);  // touched when used
    std::vector<cpu::LinearWorker> linear(count);
    threads.emplace(count);
    attention_workers = std::move(workers);
    linear_workers = std::move(linear);
  } catch (...) {
    // emplace has destroyed the old pool before it failed: go on with the caller alone.
    if (!threads) threads.emplace(1U);
    throw;
  }
}

std::uint32_t cpu::State::next_id(const char* method) {
  if (last_id == std::numeric_limits<std::uint32_t>::max()) refuse(method, "all 2^32 handles are used up");
  return ++last_id;
}

cpu::RowView cpu::State::view(const char* method, const char* name, Rows rows) const {
  const auto found = buffers.find(rows.buffer.value);
  if (found == buffers.end())
    refuse(method, std::string(name) + ": no buffer has the handle " + std::to_string(rows.buffer.value));
  const cpu::Buffer& buffer = found->second;
  if (std::uint64_t{rows.first} + rows.count > buffer.rows)
    refuse(method, std::string(name) + ": rows " + std::to_string(rows.first) + " to " +
                       std::to_string(std::uint64_t{rows.first} + rows.count) + " of a buffer of " +
                       std::to_string(buffer.rows));
  if (rows.width == 0 || rows.width > buffer.width)
    refuse(method, std::string(name) + ": width " + std::to_string(rows.width) +
                       "; the buffer's rows allow 1 to " + std::to_string(buffer.width));
  return {buffer.data() + std::size_t{rows.first} * buffer.width, buffer.width, rows.count, rows.width};
}

namespace cpu {

void check_width(const char* method, const char* name, const RowView& view, std::uint64_t expected) {
  if (view.width != expected)
    refuse(method, std::string(name) + " has width " + std::to_string(view.width) + ", needed is " +
                       std::to_string(expected));
}

void check_count(const char* method, const char* name, const RowView& view, std::uint64_t expected) {
  if (view.count != expected)
    refuse(method, std::string(name) + " has " + std::to_string(view.count) + " rows, needed are " +
                       std::to_string(expected));
}

void check_apart(const char* method, Rows a, Rows b, bool same_is_fine) {
  if (a.buffer != b.buffer) return;
  if (a.first == b.first && a.count == b.count && same_is_fine) return;
  if (std::uint64_t{a.first} + a.count <= b.first || std::uint64_t{b.first} + b.count <= a.first) return;
  refuse(method, "input and output share rows " + std::to_string(std::max(a.first, b.first)) +
                     " and following of one buffer; use other rows or another buffer");
}

}  // namespace cpu

Backend::Backend(const BackendConfig& config) : impl_(std::make_unique<Impl>()) {
  impl_->kernels = choose_kernels(config.isa);
  impl_->isa = impl_->kernels->name;
  impl_->start_threads("Backend", config.threads);
}

Backend::~Backend() {
  if (impl_->birthplace.left()) static_cast<void>(impl_.release());  // no threads to join
}

const char* Backend::name() { return "cpu"; }

std::vector<std::string> Backend::available_isas() {
  std::vector<std::string> names;
  for (const kernels::Kernels* tier : kernels::available_kernels()) names.emplace_back(tier->name);
  return names;
}

const std::string& Backend::isa() const { return impl_->isa; }
std::uint32_t Backend::threads() const {
  const auto call = impl_->enter();
  return impl_->threads->threads();
}

void Backend::synchronize() { const auto call = impl_->enter(); }

void Backend::set_threads(std::uint32_t threads) {
  const auto call = impl_->enter();
  impl_->start_threads("set_threads", threads);
}

BufferId Backend::create_buffer(std::uint32_t rows, std::uint32_t width) {
  const auto call = impl_->enter();
  if (rows == 0 || width == 0)
    refuse("create_buffer",
           std::to_string(rows) + " rows of width " + std::to_string(width) + "; both must be at least 1");
  const std::uint64_t elements = std::uint64_t{rows} * width;
  cpu::Buffer buffer;
  if (elements <= std::numeric_limits<std::size_t>::max() / sizeof(float) / 2)
    buffer.memory = cpu::MappedMemory::allocate(elements * sizeof(float));
  if (buffer.memory.data() == nullptr)
    throw OutOfMemory("[Backend.create_buffer] the system has no room for " + std::to_string(rows) +
                      " rows of " + std::to_string(width) + " float32; ask for fewer rows");
  buffer.rows = rows;
  buffer.width = width;
  const BufferId id{impl_->next_id("create_buffer")};
  impl_->buffers.emplace(id.value, std::move(buffer));
  return id;
}

void Backend::destroy_buffer(BufferId buffer) {
  if (impl_->birthplace.left()) return;  // may be called by a destructor
  const auto call = impl_->enter();
  if (impl_->buffers.erase(buffer.value) == 0)
    refuse("destroy_buffer", "no buffer has the handle " + std::to_string(buffer.value));
}

void Backend::upload(Rows to, std::span<const float> from) {
  const auto call = impl_->enter();
  const cpu::RowView view = impl_->view("upload", "to", to);
  if (from.size() != std::size_t{view.count} * view.width)
    refuse("upload", std::to_string(from.size()) + " values for " + std::to_string(view.count) +
                         " rows of width " + std::to_string(view.width));
  for (std::size_t i = 0; i < view.count; ++i)
    std::memcpy(view.row(i), from.data() + i * view.width, view.width * sizeof(float));
}

void Backend::download(Rows from, std::span<float> to) const {
  const auto call = impl_->enter();
  const cpu::RowView view = impl_->view("download", "from", from);
  if (to.size() != std::size_t{view.count} * view.width)
    refuse("download", "room for " + std::to_string(to.size()) + " values, rows hold " +
                           std::to_string(view.count) + " times " + std::to_string(view.width));
  for (std::size_t i = 0; i < view.count; ++i)
    std::memcpy(to.data() + i * view.width, view.row(i), view.width * sizeof(float));
}

}  // namespace pykv
