#include "engine/metrics.h"

#include <algorithm>
#include <utility>

#include "engine/histogram.h"

namespace pykv::engine {

const char* outcome(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::failed:
      return "failed";
    case FinishReason::timeout:
      return "timeout";
    case FinishReason::none:
      break;
  }
  return "none";
}

Metrics::Metrics() {
  for (const char* name : {"stop", "length", "cancelled", "failed", "timeout", "rejected"})
    totals_.requests[name] = 0;
  totals_.time_to_first_token = request_histogram();
  totals_.inter_token = request_histogram();
  totals_.step_duration = request_histogram();
  totals_.reclaim_duration = reclaim_histogram();
}

TenantCounters& Metrics::tenant(const std::string& name) {
  const bool fits = totals_.tenants.size() < kMaxTenants || totals_.tenants.contains(name);
  const auto [place, added] = totals_.tenants.try_emplace(fits ? name : "other");
  if (added) place->second.miss_tokens = {{"first_seen", 0}, {"last_token", 0}};
  return place->second;
}

void Metrics::count_hits(Session& session, std::uint32_t upto) {
  const std::uint32_t end = std::min(upto, session.prompt_tokens);
  if (end <= session.counted) return;
  const std::uint32_t hits = end - session.counted;
  TenantCounters& counters = tenant(session.request.tenant);
  counters.query_tokens += hits;
  counters.hit_tokens += hits;
  totals_.prompt_tokens += hits;
  session.cached += hits;
  session.counted = end;
}

void Metrics::count_computed(Session& session, std::uint32_t from, std::uint32_t upto) {
  if (!session.generating()) {
    session.computed += std::min(upto, session.prompt_tokens) - std::min(from, session.prompt_tokens);
    totals_.computed_prompt_tokens += upto - from;
  }
  const std::uint32_t end = std::min(upto, session.prompt_tokens);
  if (end <= session.counted) return;
  std::uint32_t misses = end - session.counted;
  TenantCounters& counters = tenant(session.request.tenant);
  counters.query_tokens += misses;
  totals_.prompt_tokens += misses;
  const std::uint32_t begin = std::exchange(session.counted, end);
  // The logits of the last token are needed, so it is computed even if it is known.
  if (end == session.prompt_tokens && session.prompt_known) {
    ++counters.miss_tokens["last_token"];
    --misses;
  }
  const std::uint32_t known = std::min(session.known, end);
  if (known > begin) {  // stored, but windows could not continue from there
    counters.miss_tokens["no_resume_point"] += std::min(known - begin, misses);
    misses -= std::min(known - begin, misses);
  }
  counters.miss_tokens["first_seen"] += misses;
}

void Metrics::token(const Session& session, double now) {
  ++totals_.generated_tokens;
  if (session.generated() == 0)
    observe(totals_.time_to_first_token, now - session.submitted_at);
  else
    observe(totals_.inter_token, now - session.last_token_at);
}

void Metrics::draft(std::uint32_t drafted, std::uint32_t accepted) {
  totals_.drafted_tokens += drafted;
  totals_.accepted_tokens += accepted;
}

void Metrics::step(double seconds) {
  ++totals_.steps;
  observe(totals_.step_duration, seconds);
}

void Metrics::reclaim(double seconds) { observe(totals_.reclaim_duration, seconds); }

EngineSnapshot Metrics::snapshot() const {
  EngineSnapshot out = totals_;
  out.requests["rejected"] = rejected_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace pykv::engine
