#include "pykv/model.h"

#include <algorithm>
#include <string>

#include "model/architecture.h"
#include "model/decoder.h"
#include "model/row_buffer.h"
#include "model/turns.h"
#include "pykv/errors.h"

namespace pykv {
namespace {

// Logits are computed and fetched this many rows at a time: enough for the output matrix
// to be read rarely, few enough for a large vocabulary (128k: 32 MiB).
constexpr std::uint32_t kHeadRows = 64;

std::string at(const char* method) { return "[Model." + std::string(method) + "] "; }

}  // namespace

struct Model::Impl {
  Backend& backend;
  ModelConfig config;
  std::size_t bytes_before;
  Decoder decoder;
  std::size_t weight_bytes;
  LayerTable layers;
  RowBuffer logits_rows;  // [kHeadRows, vocab], made with the first logits
  bool head_ready = false;
  Turns turns;

  Impl(const GgufFile& file, Backend& machine, const ModelOptions& options)
      : backend(machine),
        config(read_model_config(file, options)),
        bytes_before(machine.weight_bytes()),
        decoder(file, find_architecture(file).decoder, config, machine, options),
        weight_bytes(machine.weight_bytes() - bytes_before),
        layers(layer_table(config)) {
    file.drop_pages();
  }

  void check_step(Step& step, std::span<const Token> tokens) const;
  void check_logits(std::uint32_t rows, std::span<const std::uint32_t> logit_rows, std::size_t size) const;
  void compute_logits(Rows x, std::span<float> logits);
};

void Model::Impl::check_step(Step& step, std::span<const Token> tokens) const {
  if (&step.backend() != &backend)
    throw InvalidArgument(at("forward") +
                          "the step's cache uses another backend than the model; make both with one");
  for (std::uint32_t i = config.layers; i-- > 0;) {  // the last one first: it finds a cache of fewer
    LayerSpec layer = step.layer(i);
    layer.pool = layers[i].pool;  // what is kept of windows is the cache's affair
    if (layer != layers[i])
      throw InvalidArgument(at("forward") +
                            "the step's cache was not made for this model; use its layer table");
  }
  if (tokens.size() != step.rows())
    throw InvalidArgument(at("forward") + "got " + std::to_string(tokens.size()) + " tokens, the step has " +
                          std::to_string(step.rows()) + " rows");
  if (tokens.size() > max_rows())
    throw InvalidArgument(at("forward") + "the step has " + std::to_string(tokens.size()) +
                          " rows, the limit is " + std::to_string(max_rows()) + "; plan smaller steps");
  for (const Token token : tokens)
    if (token < 0 || static_cast<std::uint32_t>(token) >= config.vocab)
      throw InvalidArgument(at("forward") + "token " + std::to_string(token) +
                            " is outside the vocabulary, ids are 0 to " + std::to_string(config.vocab - 1));
}

void Model::Impl::check_logits(std::uint32_t rows, std::span<const std::uint32_t> logit_rows,
                               std::size_t size) const {
  for (std::size_t i = 0; i < logit_rows.size(); ++i)
    if (logit_rows[i] >= rows || (i > 0 && logit_rows[i] <= logit_rows[i - 1]))
      throw InvalidArgument(at("forward") + "logit row " + std::to_string(logit_rows[i]) +
                            " is out of range or out of order; rows ascend from 0 to " +
                            std::to_string(rows - 1));
  if (size / config.vocab != logit_rows.size() || size % config.vocab != 0)
    throw InvalidArgument(at("forward") + "logits have room for " + std::to_string(size) + " numbers, " +
                          std::to_string(logit_rows.size()) + " rows of " + std::to_string(config.vocab) +
                          " are needed");
}

void Model::Impl::compute_logits(Rows x, std::span<float> logits) {
  if (!head_ready && x.count != 0) {
    logits_rows = RowBuffer(backend, kHeadRows, config.vocab);
    head_ready = true;
  }
  const std::uint32_t end = x.first + x.count;
  while (x.first < end) {
    x.count = std::min(end - x.first, kHeadRows);
    const std::size_t numbers = std::size_t{x.count} * config.vocab;
    decoder.head(x, logits_rows.rows(x.count));
    backend.download(logits_rows.rows(x.count), logits.first(numbers));
    logits = logits.subspan(numbers);
    x.first += x.count;
  }
}

Model::Model(const GgufFile& file, Backend& backend, const ModelOptions& options)
    : impl_(std::make_unique<Impl>(file, backend, options)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return impl_->config; }
std::size_t Model::weight_bytes() const { return impl_->weight_bytes; }
std::uint64_t Model::parameters() const { return impl_->decoder.parameters(); }

void Model::forward(Step& step, std::span<const Token> tokens, std::span<const std::uint32_t> logit_rows,
                    std::span<float> logits) {
  // Checked first: a forked child is refused here and does not wait for a thread that it lacks.
  impl_->check_step(step, tokens);
  impl_->check_logits(step.rows(), logit_rows, logits.size());
  const Turns::Turn turn(impl_->turns);
  impl_->compute_logits(impl_->decoder.run_layers(step, tokens, logit_rows), logits);
}

}  // namespace pykv
