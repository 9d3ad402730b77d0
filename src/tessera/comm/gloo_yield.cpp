#include "tessera/comm/gloo_yield.h"

#include <sched.h>
#include <sys/epoll.h>

#include <atomic>

namespace {

std::atomic<int64_t> yields{0};

struct LastEvents {
  int count = 0;
  uint64_t first = 0;
};
thread_local LastEvents last_events;

}  // namespace

// The C library's, which is the same call without a signal mask (epoll_wait(2)).
extern "C" int epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  const int count = epoll_pwait(epoll, events, most, timeout, nullptr);
  const LastEvents now{count, count > 0 ? events[0].data.u64 : 0};
  if (count > 0 && now.count == last_events.count && now.first == last_events.first) {
    yields.fetch_add(1, std::memory_order_relaxed);
    sched_yield();
  }
  last_events = now;
  return count;
}

namespace tessera::comm {

int64_t event_thread_yields() { return yields.load(std::memory_order_relaxed); }

}  // namespace tessera::comm
