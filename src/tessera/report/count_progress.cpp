#include "tessera/report/count_progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "tessera/base/log.h"
#include "tessera/base/units.h"

namespace tessera::report {

namespace {
constexpr double kTerminalEvery = 0.1;  // seconds between redraws
constexpr double kPlainEvery = 10;      // seconds between lines of a log
constexpr int kBar = 30, kLeastBar = 10;

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}
}  // namespace

CountProgress::CountProgress(bool enabled, std::string name, std::string things, int64_t total)
    : enabled_(enabled && total > 0),
      terminal_(log::in_terminal()),
      name_(std::move(name)),
      things_(std::move(things)),
      total_(total) {}

void CountProgress::at(int64_t done) {
  if (!enabled_ || done <= last_) return;
  last_ = done;
  const auto now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (done < total_ && since < (terminal_ ? kTerminalEvery : kPlainEvery)) return;
  shown_ = now;
  show(done);
}

void CountProgress::show(int64_t done) {
  const double seconds = std::max(1e-3, std::chrono::duration<double>(Clock::now() - start_).count());
  const double rate = static_cast<double>(done) / seconds;
  char speed[48];
  std::snprintf(speed, sizeof speed, "%.1f ", rate);
  std::string line = name_ + " " + std::to_string(done) + "/" + std::to_string(total_) + " " + things_ + "  " + speed +
                     things_ + "/s  ";
  line += done < total_ ? "ETA " + format_seconds(static_cast<double>(total_ - done) / rate)
                        : "in " + format_seconds(seconds);
  if (!terminal_) {
    log::info(line);
    return;
  }
  const int width = terminal_width();
  const int cells = std::min(kBar, width - static_cast<int>(line.size()) - 4);
  if (cells >= kLeastBar) {
    const auto full = static_cast<int>(cells * done / total_);
    std::string bar(static_cast<size_t>(cells), ' ');
    for (int i = 0; i < cells; ++i) bar[static_cast<size_t>(i)] = i < full ? '=' : i == full ? '>' : ' ';
    line = "[" + bar + "] " + line;
  }
  log::status(line.substr(0, static_cast<size_t>(width - 1)));
  open_ = true;
}

void CountProgress::finish() {
  if (open_) log::keep_status();
  open_ = false;
}

}  // namespace tessera::report
