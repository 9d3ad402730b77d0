#include "tessera/base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <mutex>
#include <string>
#include <utility>

#include "tessera/base/text.h"

namespace tessera::log {

namespace {
int rank_ = 0;
int world_ = 1;

constexpr const char* kClear = "\r\x1b[K";
constexpr size_t kMostKept = size_t{256} << 10;  // bytes for a reader that comes back
constexpr int kPatience = 1000;                  // milliseconds at the end, behind the last byte that was taken

std::mutex mutex_;      // lanes and loaders log too; of all below
std::string status_;    // as it is drawn
std::string kept_;      // what was not taken yet
int64_t left_out_ = 0;  // lines behind it

/// stderr, so that a write never waits. Its own description is shared with the shell and with who reads: it stays as it is,
/// and a pipe or a terminal is opened a second time.
class Stderr {
 public:
  /// How many bytes were taken. All of them where none ever will be: a reader that has gone, a full disk.
  size_t take(std::string_view text) {
    look();
    size_t done = 0;
    for (bool again = own_ >= 0; done < text.size();) {
      const ssize_t count = put(text.substr(done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count < 0 && std::exchange(again, false)) {  // a terminal may have got the number of one that has gone
        seen_ = {};
        look();
        continue;
      }
      if (count < 0) return text.size();
      done += static_cast<size_t>(count);
    }
    return done;
  }
  /// Whether it takes something within so many milliseconds.
  static bool ready(int milliseconds) {
    pollfd one{STDERR_FILENO, POLLOUT, 0};
    return ::poll(&one, 1, milliseconds) > 0;
  }

 private:
  /// It may be another file than at the line before.
  void look() {
    struct stat now {};
    if (::fstat(STDERR_FILENO, &now) != 0) now = {};
    if (now.st_dev == seen_.st_dev && now.st_ino == seen_.st_ino && now.st_rdev == seen_.st_rdev) return;
    if (own_ >= 0) ::close(own_);
    own_ = -1, seen_ = now;
    if (S_ISFIFO(now.st_mode) || (S_ISCHR(now.st_mode) && ::isatty(STDERR_FILENO) == 1))
      own_ = ::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  }
  ssize_t put(std::string_view text) const {
    if (own_ >= 0) return ::write(own_, text.data(), text.size());
    if (S_ISSOCK(seen_.st_mode)) return ::send(STDERR_FILENO, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (S_ISREG(seen_.st_mode)) return ::write(STDERR_FILENO, text.data(), text.size());
    // Of a pipe that cannot be opened (another user's): another process may fill it between the two calls.
    if (!ready(0)) return errno = EAGAIN, -1;
    return ::write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
  }
  int own_ = -1;
  struct stat seen_ {};
};
Stderr stderr_;

/// Whether nothing is kept any more.
bool write_kept() {
  kept_.erase(0, stderr_.take(kept_));
  if (!kept_.empty()) return false;
  if (left_out_ > 0) {
    kept_ = "warning: " + std::to_string(left_out_) + (left_out_ == 1 ? " line" : " lines") +
            " of the log left out here: nobody read them\n";
    left_out_ = 0;
    kept_.erase(0, stderr_.take(kept_));
  }
  return kept_.empty();
}

void write_out(std::string_view text) {
  if (write_kept()) {
    kept_ = text.substr(stderr_.take(text));
  } else if (left_out_ > 0 || kept_.size() + text.size() > kMostKept) {
    ++left_out_;
  } else {
    kept_ += text;
  }
}

/// A fork may come while another thread logs, and what is kept is its parent's to write.
[[maybe_unused]] const int kForks = ::pthread_atfork([] { mutex_.lock(); }, [] { mutex_.unlock(); },
                                                     [] {
                                                       kept_.clear(), left_out_ = 0;
                                                       mutex_.unlock();
                                                     });

/// Writes a line in one call, so that lines of several ranks do not interleave.
/// Names from files may be in it: they are shown, and do nothing to the terminal. There the line may be where another
/// rank, or this one, has drawn its progress: that goes, and this one's comes again below.
void put(std::string text) {
  text = printable(text, Lines::kept) + '\n';
  const std::lock_guard lock(mutex_);
  write_out(in_terminal() ? kClear + text + status_ : text);
}

std::string line(std::string_view label, std::string_view text) {
  std::string out = world_ > 1 ? "rank " + std::to_string(rank_) + ": " : "";
  return out.append(label).append(text);
}
}  // namespace

void set_rank(int rank, int world) { rank_ = rank, world_ = world; }
void info(std::string_view text) {
  if (rank_ == 0) put(std::string(text));
}
void warn(std::string_view text) { put(line("warning: ", text)); }
void error(std::string_view text) {
  keep_status();  // how far it came stands above what ended it
  put(line("error: ", text));
}

bool in_terminal() { return isatty(STDERR_FILENO) == 1; }

// It is drawn anew soon: there is no use in keeping one that nobody saw.
void status(std::string_view line) {
  const std::lock_guard lock(mutex_);
  status_ = line;
  if (write_kept()) write_out(kClear + status_);
}

void keep_status() {
  const std::lock_guard lock(mutex_);
  if (!status_.empty()) write_out("\n");
  status_.clear();
}

void flush() {
  const std::lock_guard lock(mutex_);
  int still = 0;  // times in a row that nothing was taken
  for (size_t before = kept_.size(); !write_kept() && still < 3; before = kept_.size())
    if (still = kept_.size() == before ? still + 1 : 0; still > 0 && !Stderr::ready(kPatience)) break;
}

}  // namespace tessera::log
