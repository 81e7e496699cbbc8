// Floor 5. Histograms with the bounds that Prometheus users expect for this kind of time.
#pragma once

#include "pykv/engine.h"

namespace pykv::engine {

Histogram request_histogram();                       // 1 ms … 60 s: first token, time between tokens, steps
Histogram reclaim_histogram();                       // 1 µs … 100 ms
void observe(Histogram& histogram, double seconds);  // negative counts as 0

}  // namespace pykv::engine
