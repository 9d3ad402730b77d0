#include "tessera/train/start_times.h"

#include <numeric>

#include "tessera/base/units.h"

namespace tessera::train {

namespace {

constexpr std::array<const char*, kStartPhases> kNames = {"starting the program",
                                                          "connecting",
                                                          "building the model",
                                                          "preparing the data",
                                                          "measuring the model",
                                                          "planning",
                                                          "waiting for the plan",
                                                          "compiling the plan",
                                                          "allocating buffers",
                                                          "loading the weights",
                                                          "sampling"};

}  // namespace

const char* name(StartPhase phase) { return kNames[static_cast<size_t>(phase)]; }

void StartTimes::begin(StartPhase phase) {
  end();
  phase_ = phase;
}

void StartTimes::end() {
  const Clock::time_point now = Clock::now();
  seconds_[static_cast<size_t>(phase_)] += std::chrono::duration<double>(now - began_).count();
  began_ = now;
}

double total(const StartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

std::string describe(const StartSeconds& seconds) {
  std::string phases;
  for (size_t p = 0; p < seconds.size(); ++p)
    if (seconds[p] >= 5e-4)
      phases += (phases.empty() ? "" : ", ") + std::string(kNames[p]) + " " + format_seconds(seconds[p]);
  return format_seconds(total(seconds)) + " from the start: " + phases;
}

}  // namespace tessera::train
