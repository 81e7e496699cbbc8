#include "engine/histogram.h"

#include <algorithm>
#include <utility>

namespace pykv::engine {

namespace {

Histogram with_bounds(std::vector<double> bounds) {
  Histogram histogram;
  histogram.counts.assign(bounds.size() + 1, 0);
  histogram.bounds = std::move(bounds);
  return histogram;
}

}  // namespace

Histogram request_histogram() {
  return with_bounds(
      {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0});
}

Histogram reclaim_histogram() { return with_bounds({1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1}); }

void observe(Histogram& histogram, double seconds) {
  const double value = std::max(seconds, 0.0);
  const auto bound = std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), value);
  ++histogram.counts[static_cast<std::size_t>(bound - histogram.bounds.begin())];
  histogram.sum += value;
}

}  // namespace pykv::engine
