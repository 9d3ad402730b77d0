#include "tessera/train/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "tessera/base/check.h"
#include "tessera/comm/launch/stop_signals.h"

namespace tessera::train {

namespace {

// torchrun and mpirun pass on a SIGINT that the terminal has sent to the ranks as well: both are one.
constexpr int kSecondThought = 1;  // seconds after which another one is a second one

volatile std::sig_atomic_t stopped_by = 0, at_once = 0, prints_end = 0, save_asked = 0;
volatile std::sig_atomic_t launched = 0, alone = 0;
volatile std::time_t stopped_at = 0;
std::atomic<const char*> newest = nullptr;

/// Where nobody reads (log.h's [Note: nobody waits for a reader]) the end does not wait either.
void print(const char* text) {
  pollfd log{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&log, 1, 0) <= 0) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, ::strlen(text));
}

void print_stop(int number, const char* text) {
  const char* name = ::sigabbrev_np(number);
  print("stopped "), print(text), print(name ? name : "NAL");
}

std::time_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec;
}

void on_signal(int number) {
  const bool first = stopped_by == 0;
  if (first) {
    stopped_at = now();
    stopped_by = number;
  }
  if (at_once) {  // before the first step there is nothing to save; the next start cleans up
    if (prints_end) print_stop(number, "by SIG"), print(" before the first step; start again to go on\n");
    ::_exit(static_cast<int>(Exit::again));
  }
  if (first || number != SIGINT || launched || (!alone && now() - stopped_at <= kSecondThought)) return;
  const char* folder = newest;
  if (prints_end) {
    print_stop(number, "at once by a second SIG");
    print(folder ? ": the last complete checkpoint is " : ": there is no complete checkpoint");
    if (folder) print(folder);
    print(folder ? ", and the next start goes on from it\n" : ", and the next start begins anew\n");
  }
  ::_exit(static_cast<int>(folder ? Exit::again : Exit::rank_lost));
}

void on_save(int) { save_asked = 1; }

}  // namespace

void watch_stop_signals(const comm::Rendezvous& place) {
  at_once = 1;
  prints_end = place.rank == 0;
  alone = place.world == 1;
  launched = std::getenv("TESSERA_STATUS") != nullptr;
  for (const int number : comm::kStopSignals) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) == 0 && number == SIGHUP && now.sa_handler == SIG_IGN) continue;
    std::signal(number, on_signal);
  }
  std::signal(comm::kSaveSignal, on_save);
}

void stop_behind_steps() { at_once = 0; }

int asking_signal() {
  if (stopped_by) return stopped_by;
  if (!save_asked) return 0;
  save_asked = 0;
  return comm::kSaveSignal;
}

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

void name_checkpoint(const std::string& folder) {
  static std::array<std::string, 2> kept;  // the handler may be reading one of them
  static size_t next = 0;
  kept[next] = folder;
  newest = kept[next].c_str();
  next = 1 - next;
}

}  // namespace tessera::train
