#pragma once
// The progress line of a run: a terminal shows one line that is overwritten, a log gets a line now and then.
//
//   Progress progress(rank == 0, steps, done);
//   progress.step(metrics, predicted_peak);
#include <chrono>
#include <cstdint>
#include <string>

#include "tessera/report/metrics.h"

namespace tessera::report {

class Progress {
 public:
  Progress(bool enabled, int64_t steps, int64_t done);
  void step(const StepMetrics& metrics, int64_t predicted_peak);
  void finish();  ///< leaves the last line standing

 private:
  using Clock = std::chrono::steady_clock;
  const bool enabled_, terminal_;
  const int64_t steps_, first_;
  double smooth_loss_ = 0, smooth_seconds_ = 0;
  bool any_ = false;
  Clock::time_point shown_{};
};

// A progress bar with the remaining time for a count of equal items: one line that is overwritten in a terminal,
// elsewhere a line now and then.
//
//   CountProgress progress(rank == 0, "prepare", "clips", 1000);
//   progress.at(12);                        // [==>      ] prepare 12/1000 clips  4.1 clips/s  ETA 4 min 01 s

class CountProgress {
 public:
  CountProgress(bool enabled, std::string name, std::string things, int64_t total);
  ~CountProgress() { finish(); }
  void at(int64_t done);  ///< one thread at a time
  void finish();          ///< leaves the last line standing

 private:
  using Clock = std::chrono::steady_clock;
  void show(int64_t done);

  const bool enabled_, terminal_;
  const std::string name_, things_;
  const int64_t total_;
  int64_t last_ = 0;
  bool open_ = false;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

}  // namespace tessera::report
