#pragma once
// The numbers that ranks exchange at the `norm` of every step (loss, memory, times), packed as doubles.
//
//   std::vector<double> mine = report.pack();
//   RankMetrics line = rank_metrics(1, StepReport::unpack(theirs), mesh, temporaries);
#include <array>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/engine/memory/meter.h"
#include "tessera/net/unit_update.h"
#include "tessera/plan/schedule.h"
#include "tessera/report/metrics.h"

namespace tessera::train {

struct StepReport {
  double loss = 0;        ///< this rank's share of the mean loss
  double bad_sample = 0;  ///< 1 + dataset index of a sample with a NaN or infinite loss, 0: none
  double stop = 0;        ///< the signal that asked for the end or for a checkpoint; 0: none
  double peak = 0, persistent = 0, predicted = 0, reserved = 0;
  double host = 0;  ///< bytes on the host tier
  /// Of activations compressed in the step: the mean of their relative errors and the largest; -1: none was.
  double compression_error = -1, most_compression_error = 0;
  double samples = 0;  ///< host bytes of the step's samples; the next ones take as much
  double work = 0;     ///< seconds a sample took in the step before; 0: it had none
  /// Seconds in which computing waited in the step before: for collectives, copies, other stages (engine/exposed.h);
  /// and before this step for its samples.
  double exposed_comm = 0, exposed_copy = 0, exposed_stages = 0, exposed_data = 0, exposed_dispatch = 0;
  net::Totals totals{};                          ///< of updates ([Note: totals] of net/unit_update.h)
  std::array<double, engine::kParts> at_peak{};  ///< bytes by engine::Part when the peak was reached
  std::array<double, kAxes> sent{};              ///< bytes of the step before, by mesh axis; a group over several
                                                 ///< axes counts on the outermost
  std::array<double, plan::kLaneCount> busy{};   ///< seconds of each lane in the step before
  /// Of the GPU, by its driver since the step before (device/driver_watch.h); no bytes: it says nothing.
  double gpu_utilisation = 0, gpu_watts = 0, gpu_bytes = 0;
  double span = 0;   ///< seconds in which they were, with what followed that step: samples, checkpoints
  double flops = 0;  ///< that the model takes of this rank in this step (utilisation.h)

  /// Bytes as the meter has them now.
  void read_meter();
  /// Bytes by axis and seconds by lane, as comm::Comm and engine::Executor count them.
  void take(const std::map<std::string, int64_t>& sent, const std::map<std::string, double>& lanes);

  std::vector<double> pack() const;
  static StepReport unpack(const std::vector<double>& values);
};

/// A rank's entry of a step's metrics. `temporaries`: the predicted bytes of them at the peak; the meter does not tell
/// them from activations.
report::RankMetrics rank_metrics(int rank, const StepReport& report, const Mesh& mesh, int64_t temporaries);

}  // namespace tessera::train
