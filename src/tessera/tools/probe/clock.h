#pragma once
// Seconds of calls that run again and again. The second half of them counts: what was idle is faster for a moment than it is
// for long. On a CPU they are those of its clock. On a device they are those between events of its stream, because the host
// gives it work and runs ahead.
//
//   const std::unique_ptr<Clock> clock = clock_of(device::used(), ranks, 0.4);
//   clock->seconds([&] { kernels.linear(x, w, {}, false, type); });
//   clock->beside(gather, product).lost;
//
// [Note: work ahead] A device that waits for the host to give it the next call is timed as slow as the host. So it first copies
// within its memory, for as long as the host takes to give it some calls.
#include <functional>
#include <memory>
#include <vector>

#include "tessera/device/backend.h"

namespace tessera::tools {

using Call = std::function<void()>;

/// Those that measure at the same time, because they will compute at the same time.
struct Ranks {
  std::function<double(double mine)> mean;  ///< over all, which all call
  std::function<void()> meet;               ///< returns when all have called it
};

/// Of a call on another thread while this one computes.
struct Beside {
  double rate = 1;  ///< of the call, of its rate alone
  double lost = 0;  ///< share of compute that is lost meanwhile
};

class Clock {
 public:
  /// `seconds`: spent on each measurement, about.
  Clock(Ranks ranks, double seconds) : ranks_(std::move(ranks)), seconds_(seconds) {}
  virtual ~Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// Of one call: the median of as many as fill `share` of the time, the mean of the ranks. All ranks call equally often.
  double seconds(const Call& call, double share = 1);
  /// Calls until so much time has passed.
  void warm_up(const Call& call, double seconds);
  Beside beside(const Call& call, const Call& compute);
  /// Seconds that the host takes to give a call to the device, which does its work later; of a CPU those of the call.
  virtual double dispatch(const Call& call) = 0;
  double mean(double mine) const { return ranks_.mean(mine); }
  void meet() const { ranks_.meet(); }

 protected:
  /// Of each of `count` calls, one after the other.
  virtual std::vector<double> each(const Call& call, int count) = 0;
  /// Returns when all calls so far have done their work.
  virtual void settle() {}
  struct Overlap {
    double took;      ///< seconds of all calls
    double computed;  ///< computations done meanwhile
  };
  /// `calls` of one beside at least `computations` of the other, as long as the first ones run.
  virtual Overlap overlap(const Call& call, int calls, const Call& compute, int computations) = 0;

 private:
  const Ranks ranks_;
  const double seconds_;
};

/// Of the device that the process computes on; null: of the CPU. `ahead`: bytes of the device for [Note: work ahead].
std::unique_ptr<Clock> clock_of(const device::Backend* device, Ranks ranks, double seconds, int64_t ahead);

}  // namespace tessera::tools
