#pragma once
// The progress line of a run: a terminal shows one line that is overwritten, a log gets a line now and then.
//
//   Progress progress(rank == 0, steps, done);
//   progress.step(metrics, predicted_peak);
#include <chrono>
#include <cstdint>

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

}  // namespace tessera::report
