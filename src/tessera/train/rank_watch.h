#pragma once
// Reports this rank's activity to its launcher (heartbeats), and says where a run that failed was.
//
//   RankWatch watch(place);
//   watch.follow(comm), watch.follow(engine);
//   watch.phase(0, "loading the weights");
//
// On a device the host runs ahead: what its lanes have finished there, and are at, is read from DeviceProgress by a thread.
#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/heartbeat.h"
#include "tessera/device/failure.h"
#include "tessera/engine/engine.h"
#include "tessera/train/fault_injection.h"

namespace tessera::train {

class RankWatch {
 public:
  explicit RankWatch(const comm::Rendezvous& place);
  ~RankWatch();

  void follow(comm::Comm& comm);
  /// Once the device's own communicators were chosen (job::check_devices).
  void follow_device(comm::Comm& comm);
  void follow(engine::Engine& engine);
  /// A rank that writes a checkpoint, or decodes a sample, may take so many times fault.timeout while others wait for it.
  static constexpr int kSlowWork = 10;

  /// The main thread does something that is no instruction. `timeouts`: it may take so many times fault.timeout.
  void phase(int64_t step, const std::string& what, int timeouts = 1);
  /// "at step 12: forward blocks.3 (micro-batch 0); gather blocks.5 ...": what is under way, or failed.
  std::string where() const;
  /// The device of this rank has failed for good: that, in place of the error that followed from it, told to the launcher
  /// too. Empty: it works.
  std::optional<device::Failure> device_failure();
  /// Logs where this rank was when the run ended so: where another was lost, or its own disk or memory failed.
  void tell(const UserError& error) const;

 private:
  void look_at_device();
  void note(plan::Lane lane, int64_t step, std::string what);
  void instruction(int64_t step, int index, const plan::Instruction& in, bool ends);

  comm::Heartbeat heartbeat_;
  const std::optional<InjectedFault> injected_fault_;
  std::atomic<bool> in_phase_{false};
  mutable std::mutex lock_;
  int64_t step_ = 0;                                  // of what began last
  std::array<std::string, plan::kLaneCount> doing_;   // by lane
  std::shared_ptr<engine::DeviceProgress> progress_;  // null on a CPU
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace tessera::train
