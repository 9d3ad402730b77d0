#include "tessera/train/stop_signal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "tessera/base/check.h"
#include "tessera/comm/run_lock.h"
#include "tessera/comm/stop_signals.h"

namespace tessera::train {

namespace {

// torchrun and mpirun pass on a SIGINT that the terminal has sent to the ranks as well: both are one.
constexpr int kSecondThought = 1;  // seconds after which another one is a second one

volatile std::sig_atomic_t stopped_by = 0, at_once = 0, prints_end = 0, save_asked = 0;
volatile std::sig_atomic_t launched = 0, alone = 0;
volatile std::time_t stopped_at = 0;
std::atomic<const char*> newest = nullptr;
std::atomic<const char*> note = nullptr;                        // RUN/.stopping
volatile std::sig_atomic_t step_tenths = -1, save_tenths = -1;  // of seconds; negative: none has been seen

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

/// A text of a handler, where nothing may be allocated.
class Line {
 public:
  Line& operator<<(const char* text) {
    while (*text && length_ + 1 < text_.size()) text_[length_++] = *text++;
    return *this;
  }
  Line& operator<<(long number) {
    std::array<char, 24> digits{};
    size_t at = digits.size() - 1;
    const bool negative = number < 0;
    for (number = std::labs(number); number > 0 || at + 1 == digits.size(); number /= 10)
      digits[--at] = static_cast<char>('0' + number % 10);
    if (negative) digits[--at] = '-';
    return *this << &digits[at];
  }
  const char* text() const { return text_.data(); }

 private:
  std::array<char, 256> text_{};
  size_t length_ = 0;
};

/// What the run does now, to the log and the note. Of rank 0, by the handler of the first signal.
void announce(int number) {
  const char *abbreviation = ::sigabbrev_np(number), *file = note;
  const char* name = abbreviation ? abbreviation : "NAL";
  const long step = step_tenths, save = save_tenths;
  if (file == nullptr) return;
  Line line, kept;
  line << "SIG" << name << ": the run stops behind this step, with a checkpoint";
  if (step >= 0) line << "; a step takes " << step / 10 << "." << step % 10 << " s";
  if (save >= 0) line << ", a checkpoint " << save / 10 << "." << save % 10 << " s";
  line << "\n";
  kept << name << " " << step << " " << save << "\n";
  if (const int fd = ::open(file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644); fd >= 0) {
    [[maybe_unused]] const ssize_t written = ::write(fd, kept.text(), ::strlen(kept.text()));
    ::close(fd);
  }
  print(line.text());
}

std::time_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec;
}

void on_signal(int number) {
  const int error = errno;
  const bool first = stopped_by == 0;
  if (first) {
    stopped_at = now();
    stopped_by = number;
  }
  if (at_once) {  // before the first step there is nothing to save; the next start cleans up
    if (prints_end) print_stop(number, "by SIG"), print(" before the first step; start again to go on\n");
    ::_exit(static_cast<int>(Exit::again));
  }
  if (first) announce(number);
  errno = error;
  if (first || number != SIGINT || launched || (!alone && now() - stopped_at <= kSecondThought)) return;
  const char* folder = newest;
  if (const char* file = note) ::unlink(file);
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

void stop_behind_steps(const std::filesystem::path& run) {
  static std::string file;  // the handler reads it
  if (!run.empty()) file = comm::stop_note(run).string(), note = file.c_str();
  at_once = 0;
}

void step_took(double seconds) { step_tenths = static_cast<int>(std::lround(10 * seconds)); }

void save_took(double seconds) { save_tenths = static_cast<int>(std::lround(10 * seconds)); }

void stop_done(const std::filesystem::path& run) {
  std::error_code none;
  std::filesystem::remove(comm::stop_note(run), none);
}

std::string untold_stop(const std::filesystem::path& run) {
  std::ifstream in(comm::stop_note(run));
  std::string name;
  long step = -1, save = -1;
  if (!(in >> name >> step >> save)) return "";
  const auto seconds = [](long tenths) {
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
  };
  std::string text = "the start before was asked to end by SIG" + name.substr(0, 8) +
                     " and did not get to its checkpoint: the time before it was killed did not suffice. ";
  if (step >= 0) text += "A step takes " + seconds(step) + ", ";
  text += save >= 0 ? "a checkpoint " + seconds(save) : "a checkpoint had not been timed yet";
  return text + ": give it more than that (terminationGracePeriodSeconds of a pod, --signal=TERM@SECONDS of sbatch)";
}

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
