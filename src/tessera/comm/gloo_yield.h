#pragma once
// Gloo's event thread gives its core away instead of spinning.
//
// The thread that sends holds its connection's lock while the kernel copies. The event thread of that connection only
// tries the lock, and where it is held asks the kernel again at once: the same event, without end (gloo,
// transport/tcp/pair.cc, Pair::handleEvents). Where threads outnumber cores, the kernel takes the sender off its core in
// that moment and the event thread burns the time slice that the sender waits for. Measured on 2 cores, small models:
// 60 % of all CPU time, and steps of twice the time.
//
// So epoll_wait is defined here, and a thread that is told the same events as the time before yields its core first.
// It acts in programs that link this object; every thread that waits by epoll_wait is subject to it.
#include <cstdint>

namespace tessera::comm {

/// How many times threads of this process have yielded so. Whoever calls it has the object linked.
int64_t event_thread_yields();

}  // namespace tessera::comm
