// Floor 5. What the loop counts. Counters only grow, one place each. Loop thread only,
// except reject().
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "engine/session.h"
#include "pykv/engine.h"

namespace pykv::engine {

inline constexpr std::size_t kMaxTenants = 1000;  // further ones count as "other"
inline constexpr std::size_t kMaxSessionViews = 1000;

const char* outcome(FinishReason reason);  // its name in `requests`

class Metrics {
 public:
  Metrics();

  // Prompt tokens [counted, upto) came from others (hit) or were computed (miss). What a
  // preempted session takes or computes again lies below `counted` and is neither.
  void count_hits(Session& session, std::uint32_t upto);
  void count_computed(Session& session, std::uint32_t from, std::uint32_t upto);

  void finish(FinishReason reason) { ++totals_.requests[outcome(reason)]; }
  void preempt() { ++totals_.preempted; }
  void resume() { ++totals_.resumed; }
  void reject() { rejected_.fetch_add(1, std::memory_order_relaxed); }  // any thread
  void token(const Session& session, double now);                       // before its times are moved to `now`
  void draft(std::uint32_t drafted, std::uint32_t accepted);
  void step(double seconds);
  void reclaim(double seconds);

  // The counters as a snapshot to which the loop adds what it alone knows.
  EngineSnapshot snapshot() const;

 private:
  TenantCounters& tenant(const std::string& name);

  EngineSnapshot totals_;
  std::atomic<std::uint64_t> rejected_{0};
};

}  // namespace pykv::engine
