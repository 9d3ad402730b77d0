#include "tessera/base/log.h"

#include <unistd.h>

#include <string>

#include "tessera/base/printable.h"

namespace tessera::log {

namespace {
int rank_ = 0;
int world_ = 1;

/// Writes a line in one call, so that lines of several ranks do not interleave.
/// Names from files may be in it: they are shown, and do nothing to the terminal.
void put(std::string text) {
  text = printable(text, Lines::kept) + '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
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
void error(std::string_view text) { put(line("error: ", text)); }

}  // namespace tessera::log
