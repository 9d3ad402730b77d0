#include "tessera/comm/stop_signals.h"

#include <signal.h>

namespace tessera::comm {

namespace {

volatile std::sig_atomic_t seen = 0, last = 0, saves = 0;

void on_signal(int number) {
  // A closing terminal and its shell both send SIGHUP, batch systems repeat theirs: none is a second thought.
  if (seen > 0 && number != SIGINT && number != SIGTERM) return;
  last = number;
  seen = seen + 1;
}

void on_save(int) { saves = saves + 1; }

}  // namespace

void count_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (const int number : kStopSignals) {
    struct sigaction now {};
    const bool ignored = sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
    if (number != SIGHUP || !ignored) sigaction(number, &action, nullptr);  // nohup stays what it is
  }
  action.sa_handler = on_save;
  sigaction(kSaveSignal, &action, nullptr);
}

void forget_stop_signals() {
  std::signal(kSaveSignal, SIG_IGN);
  for (const int number : kStopSignals) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == on_signal) std::signal(number, SIG_DFL);
  }
  seen = 0;
  last = 0;
  saves = 0;
}

int signals_seen() { return seen; }

int last_signal() { return last; }

int saves_seen() { return saves; }

}  // namespace tessera::comm
