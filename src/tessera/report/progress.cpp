#include "tessera/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/base/units.h"

namespace tessera::report {

namespace {
constexpr double kSmoothing = 0.9;      // of loss and step time shown
constexpr double kTerminalEvery = 0.1;  // seconds between redraws
constexpr double kPlainEvery = 10;      // seconds between lines of a log
constexpr int kLeastBar = 10;           // columns below which a bar says nothing
}  // namespace

Progress::Progress(bool enabled, int64_t steps, int64_t done)
    : enabled_(enabled), terminal_(log::in_terminal()), steps_(steps), first_(done + 1) {}

void Progress::step(const StepMetrics& m, int64_t predicted_peak) {
  if (!enabled_) return;
  smooth_loss_ = any_ ? kSmoothing * smooth_loss_ + (1 - kSmoothing) * m.loss : m.loss;
  // The first step warms caches up; it would spoil the estimate.
  smooth_seconds_ =
      any_ && m.step > first_ + 1 ? kSmoothing * smooth_seconds_ + (1 - kSmoothing) * m.seconds : m.seconds;
  any_ = true;
  const auto now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (m.step < steps_ && m.step > first_ && since < (terminal_ ? kTerminalEvery : kPlainEvery)) return;
  shown_ = now;

  const int64_t peak = m.ranks.empty() ? 0 : m.ranks.front().peak_bytes;
  char loss[64], norm[32], lr[32], speed[32];
  std::snprintf(loss, sizeof loss, "loss %.4f, mean %.4f", m.loss, smooth_loss_);
  std::snprintf(norm, sizeof norm, "grad norm %.3g", m.grad_norm);
  std::snprintf(lr, sizeof lr, "lr %.3g", m.lr);
  std::snprintf(speed, sizeof speed, "%.0f tokens/s", static_cast<double>(m.tokens) / smooth_seconds_);
  std::vector<std::string> fields = {"step " + std::to_string(m.step) + "/" + std::to_string(steps_),
                                     loss,
                                     norm,
                                     lr,
                                     format_seconds(smooth_seconds_) + "/step",
                                     speed,
                                     format_bytes(peak) + " of " + format_bytes(predicted_peak) + " planned",
                                     "ETA " + format_seconds(static_cast<double>(steps_ - m.step) * smooth_seconds_)};
  const auto joined = [&] {
    std::string line;
    for (const auto& field : fields)
      if (!field.empty()) line += (line.empty() ? "" : "  ") + field;
    return line;
  };
  std::string line = joined();
  if (!terminal_) {
    log::info(line);
    return;
  }
  winsize size{};
  ioctl(STDERR_FILENO, TIOCGWINSZ, &size);
  const int width = size.ws_col > 0 ? size.ws_col : 100;
  const auto room = [&] { return width - static_cast<int>(line.size()) - 4; };
  // A narrow terminal shows the bar and leaves out memory, which is constant, tokens/s, which follows from the step, and
  // then what changes least.
  for (size_t dispensable : {6, 5, 3, 4, 2}) {
    if (room() >= kLeastBar) break;
    fields[dispensable].clear();
    line = joined();
  }
  if (room() >= kLeastBar) {
    const int cells = std::min(room(), 40), full = static_cast<int>(cells * m.step / steps_);
    std::string bar = "[";
    for (int i = 0; i < cells; ++i) bar += i < full ? '=' : i == full ? '>' : ' ';
    line = bar + "] " + line;
  }
  log::status(line.substr(0, static_cast<size_t>(width - 1)));
}

void Progress::finish() {
  if (terminal_) log::keep_status();
}

namespace {
constexpr int kBar = 30;

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
