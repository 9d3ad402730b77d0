#include "tessera/comm/launch/stop_signals.h"

#include <signal.h>

#include <csignal>

namespace tessera::comm {

namespace {

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

volatile std::sig_atomic_t seen = 0, last = 0;
void on_signal(int number) {
  // A closing terminal and its shell both send SIGHUP, batch systems repeat SIGUSR1: none is a second thought.
  if (seen > 0 && (number == SIGHUP || number == SIGUSR1)) return;
  last = number;
  seen = seen + 1;
}

}  // namespace

void count_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (const int number : kStopSignals) {
    struct sigaction now {};
    const bool ignored = sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
    if (number != SIGHUP || !ignored) sigaction(number, &action, nullptr);  // nohup stays what it is
  }
}

void forget_stop_signals() {
  for (const int number : kStopSignals) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == on_signal) std::signal(number, SIG_DFL);
  }
  seen = 0;
  last = 0;
}

int signals_seen() { return seen; }

int last_signal() { return last; }

}  // namespace tessera::comm
