#pragma once
// Reports this rank's activity to its launcher (heartbeats), and measures how long its own work takes.
//
//   RankWatch watch(place);
//   watch.follow(comm), watch.follow(executor);
//   watch.phase(0, "loading the weights");
//   double seconds = watch.take_work();                  // computing, without waiting for anyone
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/heartbeat.h"
#include "tessera/engine/executor.h"
#include "tessera/train/fault_injection.h"

namespace tessera::train {

class RankWatch {
 public:
  explicit RankWatch(const comm::Rendezvous& place);

  void follow(comm::Comm& comm);
  /// Once the device's own communicators were chosen (job::check_devices).
  void follow_device(comm::Comm& comm);
  void follow(engine::Executor& executor);
  /// The main thread does something that is no instruction.
  void phase(int64_t step, const std::string& what);
  /// "at step 12: forward blocks.3 (micro-batch 0); gather blocks.5 ...": what is under way, or failed.
  std::string where() const;
  /// Logs where this rank was when the run ended so: where another was lost, or its own disk or memory failed.
  void tell(const UserError& error) const;
  /// Seconds of forwards and backwards since the last call.
  double take_work();

 private:
  void note(plan::Lane lane, int64_t step, std::string what);
  void instruction(int64_t step, int index, const plan::Instruction& in, bool ends);

  comm::Heartbeat heartbeat_;
  const std::optional<InjectedFault> injected_fault_;
  std::atomic<bool> in_phase_{false};
  mutable std::mutex lock_;
  int64_t step_ = 0;                                 // of what began last
  std::array<std::string, plan::kLaneCount> doing_;  // by lane
  double began_ = 0, work_ = 0;                      // of the compute lane
};

/// "reduce blocks.2 (micro-batch 0) on reduce:dp_shard[0,1]", "fetch blocks.2, states on lane disk".
std::string describe(const plan::Instruction& instruction);

}  // namespace tessera::train
