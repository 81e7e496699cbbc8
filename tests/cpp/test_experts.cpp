// Which experts a row gets, and the row operations that only they need.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "model/experts.h"
#include "pykv/errors.h"

using namespace pykv;

namespace {

std::vector<std::uint32_t> experts_of(const std::vector<ExpertChoice>& chosen) {
  std::vector<std::uint32_t> out;
  for (const ExpertChoice& choice : chosen) out.push_back(choice.expert);
  return out;
}

std::vector<float> values(const Backend& backend, Rows rows) {
  std::vector<float> out(std::size_t{rows.count} * rows.width);
  backend.download(rows, out);
  return out;
}

}  // namespace

TEST(the_best_are_chosen_and_share_one) {
  const std::vector<float> scores{1.0F, 5.0F, -2.0F, 4.0F};
  const std::vector<ExpertChoice> chosen = choose_experts(scores, 2);
  CHECK(experts_of(chosen) == (std::vector<std::uint32_t>{1, 3}));
  CHECK(std::abs(chosen[0].weight - 1 / (1 + std::exp(-1.0F))) < 1e-6F);
  CHECK(std::abs(chosen[0].weight + chosen[1].weight - 1) < 1e-6F);
}

TEST(of_equal_ones_the_first_are_chosen) {
  const std::vector<float> scores{2.0F, 3.0F, 3.0F, 3.0F, 2.0F};
  CHECK(experts_of(choose_experts(scores, 2)) == (std::vector<std::uint32_t>{1, 2}));
  CHECK(experts_of(choose_experts(scores, 4)) == (std::vector<std::uint32_t>{0, 1, 2, 3}));
  CHECK(choose_experts(scores, 1).front().weight == 1.0F);
}

TEST(what_is_not_a_number_comes_last_and_stays_visible) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> some{kNone, 1.0F, kNone, 0.0F}, all(3, kNone);
  CHECK(experts_of(choose_experts(some, 2)) == (std::vector<std::uint32_t>{1, 3}));
  CHECK(std::isnan(choose_experts(some, 3).front().weight));
  CHECK(std::isnan(choose_experts(all, 2).front().weight));
}

TEST(rows_are_added_where_they_belong) {
  Backend backend({.threads = 2, .isa = ""});
  const BufferId in = backend.create_buffer(2, 3), out = backend.create_buffer(4, 3);
  const Rows from{in, 0, 2, 3}, to{out, 0, 4, 3};
  backend.upload(from, std::vector<float>{1, 2, 3, 4, 5, 6});
  backend.fill(to, 1.0F);
  backend.scatter_add(from, std::vector<std::uint32_t>{1, 3}, std::vector<float>{2.0F, -1.0F}, to);
  CHECK(values(backend, to) == (std::vector<float>{1, 1, 1, 3, 5, 7, 1, 1, 1, -3, -4, -5}));
}

TEST(rows_that_do_not_fit_are_refused) {
  Backend backend({.threads = 1, .isa = ""});
  const BufferId buffer = backend.create_buffer(6, 3);
  const Rows from{buffer, 0, 2, 3}, to{buffer, 2, 4, 3};
  const std::vector<float> factors{1.0F, 1.0F};
  using Ids = std::vector<std::uint32_t>;
  CHECK_THROWS(InvalidArgument, backend.scatter_add(from, Ids{0, 4}, factors, to));
  CHECK_THROWS(InvalidArgument, backend.scatter_add(from, Ids{1, 1}, factors, to));
  CHECK_THROWS(InvalidArgument, backend.scatter_add(from, Ids{2, 1}, factors, to));
  CHECK_THROWS(InvalidArgument, backend.scatter_add(from, Ids{1}, factors, to));
  CHECK_THROWS(InvalidArgument, backend.scatter_add(from, Ids{0, 1}, std::vector<float>{1.0F}, to));
  CHECK_THROWS(InvalidArgument, backend.scatter_add(from, Ids{0, 1}, factors, {buffer, 1, 2, 3}));
}

TEST(the_clamped_gate_is_that_of_its_definition) {
  for (const std::string& isa : Backend::available_isas()) {
    Backend backend({.threads = 1, .isa = isa});
    const std::vector<float> gate{-20, -1, 0, 0.5F, 6.9F, 7.1F, 300, 2, 2, 2, 1, 1, 1, 1, 1, 1, 3},
        up{1, 2, 3, 0.25F, -0.5F, 1, 1, -9, 9, 7, 0, -1, -2, 5, 6, 7.5F, -7};
    const auto n = static_cast<std::uint32_t>(gate.size());
    const BufferId buffer = backend.create_buffer(2, n);
    const Rows g{buffer, 0, 1, n}, u{buffer, 1, 1, n};
    backend.upload(g, gate);
    backend.upload(u, up);
    backend.clamped_silu_mul(g, u);
    const std::vector<float> found = values(backend, g);
    for (std::uint32_t i = 0; i < n; ++i) {
      const double x = std::min(gate[i], 7.0F), y = std::clamp(up[i], -7.0F, 7.0F);
      const double expected = x / (1 + std::exp(-1.702 * x)) * (y + 1);
      CHECK(std::abs(found[i] - expected) <= 2e-6 * std::abs(expected) + 1e-12);
    }
  }
}
