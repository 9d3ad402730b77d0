#pragma once
// Measures the time from a rank's start to its first step, phase by phase, for the log.
//
//   StartTimes times;                          // the program starts
//   times.begin(StartPhase::planning);         // ends the phase before
//   times.end();
//   describe(times.seconds());                 // "4.1 s from the start: connecting 0.3 s, planning 3.8 s"
#include <array>
#include <chrono>
#include <string>

namespace tessera::train {

enum class StartPhase {
  program,  ///< arguments, recipe, the device
  connect,  ///< to the other ranks
  model,    ///< the model without weights, and the checks of recipe, weights and folder
  data,     ///< clips and captions that are not in the cache yet
  measure,  ///< the model's memory and work
  plan,     ///< the search, by rank 0
  wait,     ///< of the other ranks, for rank 0's plan
  compile,  ///< the plan to instructions, and their communicators
  buffers,  ///< the engine's memory
  weights,  ///< of a checkpoint or of published files
  samples,  ///< that a run owes when it goes on
};
inline constexpr int kStartPhases = static_cast<int>(StartPhase::samples) + 1;

/// As in logs, heartbeats and metrics.jsonl: "loading the weights".
const char* name(StartPhase phase);

using StartSeconds = std::array<double, kStartPhases>;

class StartTimes {
 public:
  /// A phase that comes again adds to its time.
  void begin(StartPhase phase);
  void end();
  const StartSeconds& seconds() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  StartSeconds seconds_ = {};
  StartPhase phase_ = StartPhase::program;
  Clock::time_point began_ = Clock::now();
};

double total(const StartSeconds& seconds);
/// One line with all phases that took a millisecond.
std::string describe(const StartSeconds& seconds);

}  // namespace tessera::train
