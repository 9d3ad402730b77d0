#include "tessera/comm/stop_signals.h"

#include <signal.h>

#include <csignal>

namespace tessera::comm {

namespace {

volatile std::sig_atomic_t seen = 0, last = 0;
void on_signal(int number) {
  last = number;
  seen = seen + 1;
}

}  // namespace

void count_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int signals_seen() { return seen; }

int last_signal() { return last; }

}  // namespace tessera::comm
