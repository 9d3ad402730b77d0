#include "tessera/base/log.h"

#include <unistd.h>

#include <mutex>
#include <string>

#include "tessera/base/printable.h"

namespace tessera::log {

namespace {
int rank_ = 0;
int world_ = 1;

std::mutex status_mutex_;  // lanes and loaders log too
std::string status_;       // as it is drawn

constexpr const char* kClear = "\r\x1b[K";

void write_out(const std::string& text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

/// Writes a line in one call, so that lines of several ranks do not interleave.
/// Names from files may be in it: they are shown, and do nothing to the terminal. There the line may be where another
/// rank, or this one, has drawn its progress: that goes, and this one's comes again below.
void put(std::string text) {
  text = printable(text, Lines::kept) + '\n';
  if (!in_terminal()) return write_out(text);
  const std::lock_guard lock(status_mutex_);
  write_out(kClear + text + status_);
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

void status(std::string_view line) {
  const std::lock_guard lock(status_mutex_);
  status_ = line;
  write_out(kClear + status_);
}

void keep_status() {
  const std::lock_guard lock(status_mutex_);
  if (!status_.empty()) write_out("\n");
  status_.clear();
}

}  // namespace tessera::log
