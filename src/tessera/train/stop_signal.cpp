#include "tessera/train/stop_signal.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <csignal>

#include "tessera/base/check.h"

namespace tessera::train {

namespace {

volatile std::sig_atomic_t stopped_by = 0, at_once = 0, prints_end = 0;

void print(const char* text) { [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, ::strlen(text)); }

void on_signal(int number) {
  stopped_by = number;
  if (!at_once) return;
  // Before the first step there is nothing to save; the next start cleans up.
  if (prints_end) {
    const char* name = ::sigabbrev_np(number);
    print("stopped by SIG"), print(name ? name : "NAL"), print(" before the first step; start again to go on\n");
  }
  ::_exit(static_cast<int>(Exit::again));
}

}  // namespace

void watch_stop_signals(bool prints) {
  at_once = 1;
  prints_end = prints;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) == 0 && number == SIGHUP && now.sa_handler == SIG_IGN) continue;
    std::signal(number, on_signal);
  }
}

void stop_behind_steps() { at_once = 0; }

int stop_signal() { return stopped_by; }

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

}  // namespace tessera::train
