#include "tessera/train/stop_signal.h"

#include <csignal>

namespace tessera::train {

namespace {

volatile std::sig_atomic_t stopped_by = 0;
void on_signal(int number) { stopped_by = number; }

}  // namespace

void watch_stop_signals() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

int stop_signal() { return stopped_by; }

}  // namespace tessera::train
