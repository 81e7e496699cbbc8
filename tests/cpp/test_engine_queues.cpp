#include <poll.h>

#include <atomic>
#include <string>
#include <thread>

#include "check.h"
#include "engine/event_queue.h"
#include "engine/histogram.h"
#include "engine/inbox.h"
#include "engine/metrics.h"
#include "engine/notifier.h"
#include "engine/published.h"
#include "pykv/errors.h"

using namespace pykv;
using namespace pykv::engine;

namespace {

bool readable(int fd) {
  pollfd watched{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, 0) == 1;
}

SessionPtr session(int priority = 0, std::uint32_t prompt = 10) {
  EngineRequest request;
  request.prompt.assign(prompt, 1);
  request.max_tokens = 4;
  request.priority = priority;
  request.tenant = std::string("t");
  return std::make_unique<Session>(std::move(request));
}

EngineLimits queue_of(std::uint32_t length) { return {.parallel = 1, .queue_length = length}; }

}  // namespace

TEST(notifier_is_readable_from_signal_to_clear) {
  Notifier notifier;
  CHECK(!readable(notifier.fd()));
  notifier.signal();
  notifier.signal();
  CHECK(readable(notifier.fd()));
  notifier.clear();
  CHECK(!readable(notifier.fd()));
}

TEST(events_come_out_in_order_and_once) {
  EventQueue queue(2);
  std::vector<EngineEvent> events(3);
  for (std::size_t i = 0; i < 3; ++i) events[i].request = i + 1;
  queue.append(events);
  CHECK(events.empty());
  CHECK(queue.full());
  CHECK(readable(queue.fd()));
  const auto out = queue.drain();
  CHECK(out.size() == 3 && out.front().request == 1 && out.back().request == 3);
  CHECK(!readable(queue.fd()));
  CHECK(queue.drain().empty());
  CHECK(!queue.full());
}

TEST(an_empty_append_wakes_nobody) {
  EventQueue queue(2);
  std::vector<EngineEvent> none;
  queue.append(none);
  CHECK(!readable(queue.fd()));
}

TEST(inbox_numbers_from_one_and_refuses_when_full) {
  Inbox inbox(queue_of(2));
  CHECK(inbox.submit(session()) == 1);
  CHECK(inbox.submit(session()) == 2);
  CHECK_THROWS(Busy, inbox.submit(session()));
  Commands commands = inbox.take();
  CHECK(commands.submitted.size() == 2);
  CHECK_THROWS(Busy, inbox.submit(session()));  // taken, but still waiting
  inbox.set_waiting(1);
  CHECK(inbox.submit(session()) == 3);
  inbox.set_limits(queue_of(5));  // at once, for submit
  CHECK(inbox.submit(session()) == 4);
}

TEST(a_closed_inbox_refuses_until_opened) {
  Inbox inbox(queue_of(2));
  inbox.close();
  CHECK_THROWS(Busy, inbox.submit(session()));
  CHECK(inbox.wait(100.0));  // does not sleep
  inbox.open();
  CHECK(inbox.submit(session()) == 1);
}

TEST(order_is_priority_then_arrival) {
  const auto a = session(0), b = session(0), c = session(5);
  a->id = 1;
  b->id = 2;
  c->id = 3;
  c->submitted_at = 1e6;
  for (const auto* each : {&a, &b, &c}) set_rank(**each, 0);
  CHECK(precedes(*a, *b) && !precedes(*b, *a));
  CHECK(precedes(*c, *a));
}

TEST(waiting_weighs_as_much_as_priority) {
  const auto old = session(0), urgent = session(2);
  old->id = 1;
  urgent->id = 2;
  for (const double age : {19.0, 21.0}) {
    urgent->submitted_at = age;
    for (const auto* each : {&old, &urgent}) set_rank(**each, 10);
    CHECK(precedes(*urgent, *old) == (age < 20));
  }
}

TEST(histogram_counts_each_value_once) {
  Histogram histogram = request_histogram();
  observe(histogram, 0.001);  // on a bound: belongs to it
  observe(histogram, 0.0011);
  observe(histogram, 1e9);
  observe(histogram, -1);
  CHECK(histogram.counts.size() == histogram.bounds.size() + 1);
  CHECK(histogram.counts[0] == 2);
  CHECK(histogram.counts[1] == 1);
  CHECK(histogram.counts.back() == 1);
  CHECK(histogram.sum == 0.001 + 0.0011 + 1e9);
}

TEST(query_is_hit_plus_misses_and_recomputing_is_neither) {
  Metrics metrics;
  const auto one = session();
  metrics.count_hits(*one, 4);
  metrics.count_computed(*one, 4, 10);
  metrics.count_hits(*one, 7);  // resumed: takes and computes again
  metrics.count_computed(*one, 7, 10);
  const EngineSnapshot out = metrics.snapshot();
  const TenantCounters& counters = out.tenants.at("t");
  CHECK(counters.query_tokens == 10);
  CHECK(counters.hit_tokens == 4);
  CHECK(counters.miss_tokens.at("first_seen") == 6);
  CHECK(counters.miss_tokens.at("last_token") == 0);
  CHECK(out.prompt_tokens == 10);
  CHECK(out.computed_prompt_tokens == 9);
  CHECK(one->cached == 4);
}

TEST(the_last_token_of_a_known_prompt_has_its_own_reason) {
  Metrics metrics;
  const auto one = session();
  metrics.count_hits(*one, 9);
  one->prompt_known = true;
  metrics.count_computed(*one, 9, 10);
  const TenantCounters counters = metrics.snapshot().tenants.at("t");
  CHECK(counters.miss_tokens.at("last_token") == 1);
  CHECK(counters.miss_tokens.at("first_seen") == 0);
}

TEST(tenants_beyond_the_limit_are_counted_together) {
  Metrics metrics;
  for (std::size_t i = 0; i < kMaxTenants + 5; ++i) {
    auto one = session();
    one->request.tenant = "tenant " + std::to_string(i);
    metrics.count_hits(*one, 1);
  }
  const EngineSnapshot out = metrics.snapshot();
  CHECK(out.tenants.size() == kMaxTenants + 1);
  CHECK(out.tenants.at("other").hit_tokens == 5);
}

TEST(readers_always_see_a_whole_and_never_an_older_value) {
  struct Pair {
    std::uint64_t a, b;
  };
  Published<Pair> published(std::make_shared<const Pair>(Pair{0, 0}));
  std::atomic<bool> stop{false};
  std::atomic<int> faults{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i)
    readers.emplace_back([&] {
      std::uint64_t last = 0;
      while (!stop) {
        const auto seen = published.load();
        if (seen->a != seen->b || seen->a < last) ++faults;
        last = seen->a;
      }
    });
  for (std::uint64_t i = 1; i <= 20000; ++i) published.store(std::make_shared<const Pair>(Pair{i, i}));
  stop = true;
  for (auto& reader : readers) reader.join();
  CHECK(faults == 0);
  CHECK(published.load()->a == 20000);
}

TEST(commands_and_events_cross_threads_without_loss) {
  Inbox inbox(queue_of(100000));
  EventQueue events(16);
  constexpr std::uint64_t kEach = 300;
  std::thread loop([&] {
    std::uint64_t seen = 0;
    while (seen < 2 * kEach) {
      if (events.full()) {
        inbox.wait(0.01);
        continue;
      }
      Commands commands = inbox.take();
      std::vector<EngineEvent> out;
      for (const SessionPtr& one : commands.submitted) {
        EngineEvent event;
        event.request = one->id;
        out.push_back(event);
      }
      seen += out.size();
      events.append(out);
      inbox.set_waiting(0);
      if (commands.empty()) inbox.wait(0.01);
    }
  });
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i)
    clients.emplace_back([&] {
      for (std::uint64_t n = 0; n < kEach; ++n) inbox.submit(session());
    });
  std::vector<bool> got(2 * kEach + 1, false);
  std::uint64_t count = 0;
  while (count < 2 * kEach) {
    for (const EngineEvent& event : events.drain()) {
      CHECK(!got.at(event.request));
      got.at(event.request) = true;
      ++count;
    }
    inbox.poke();
  }
  for (auto& client : clients) client.join();
  loop.join();
  CHECK(count == 2 * kEach);
}
