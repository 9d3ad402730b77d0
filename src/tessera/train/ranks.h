#pragma once
// Reports this rank's activity to its launcher (heartbeats), and says where a run that failed was.
//
//   RankWatch watch(place);
//   watch.follow(comm), watch.follow(engine);
//   watch.phase(0, "loading the weights");
//
// On a device the host runs ahead: what its lanes have finished there, and are at, is read from DeviceProgress by a thread.
//
// And faults on purpose, to test how a cluster responds: one rank dies, stops, hangs or is slow at an instruction of its
// schedule.
//
//   TESSERA_DRILL="rank=1,step=3,op=reduce,do=stop" tessera launch -n 2 train recipe.toml
//
// `do` is kill, stop (SIGSTOP), hang, or a number of seconds to lose. Without step: at every step; without op: at
// forward; without unit (unit=blocks.1) or lane (lane=disk): at any; `attempt` (default 0) counts restarts.
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/heartbeat.h"
#include "tessera/device/failure.h"
#include "tessera/engine/engine.h"
#include "tessera/plan/schedule.h"
#include "tessera/prepare/pace.h"

namespace tessera::train {

struct InjectedFault {
  int rank = 0, attempt = 0;
  std::optional<int64_t> step;
  std::string op = "forward", unit, lane, act;  ///< act: "kill", "stop", "hang", or empty: be slow
  double seconds = 0;

  /// Throws UserError (usage) naming what it cannot read.
  static InjectedFault parse(const std::string& text);
  /// Injects the fault if this is its instruction.
  void at(int64_t step, const plan::Instruction& instruction) const;
};

/// The fault that TESSERA_DRILL injects, if it is for this rank and attempt.
std::optional<InjectedFault> injected_fault(int rank, int attempt);

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

// The ranks of a run as one of them sees them: its place, the mesh, its connections, and what all do together between
// steps.
//
//   Ranks ranks(place, recipe.mesh, recipe.fault.timeout);
//   if (ranks.of_first(missing)) ...                                              // rank 0 has looked
//   ranks.first_acts(step, "writing a sample", "waiting for a sample", [&] { write(); });

/// The mesh of a run that may continue with fewer ranks than its recipe names (tessera launch --min-nodes).
/// fill_mesh(asked, place.world) when all ranks are there. Else the mesh of all ranks with fewer samples at once: the
/// other axes keep their sizes, dp_shard shrinks, and where that does not go dp_replicate does. The global batch and so
/// the curve stay. Throws UserError (usage) when the ranks that are left cannot hold one copy of the other axes.
Mesh elastic_mesh(const Mesh& asked, const comm::Rendezvous& place);

class Ranks {
 public:
  /// Connects to the others. `timeout`: fault.timeout.
  Ranks(const comm::Rendezvous& place, const Mesh& asked, double timeout);

  const comm::Rendezvous place;
  const Mesh mesh;
  RankWatch watch;
  comm::Comm comm;

  int rank() const { return place.rank; }
  /// It does what is done once.
  bool first() const { return place.rank == 0; }
  comm::Group& all() { return comm.group("control", {kAllAxes.begin(), kAllAxes.end()}); }
  /// Row r: what rank r gave. All ranks together, as all that follows.
  std::vector<std::vector<double>> gather(const std::vector<double>& own) { return all().all_gather_doubles(own); }
  /// What rank 0 has, on every rank.
  bool of_first(bool own) { return gather({own ? 1. : 0.})[0][0] > 0; }
  std::string of_first(std::string own);

  /// Between steps a rank may write, decode or encode for longer than fault.timeout: the others wait for it in barriers
  /// of the pace, the last of them here.
  void wait_for_slowest(const std::function<void(prepare::Pace&)>& act);
  /// A barrier of the pace; the launcher is told that this rank waits.
  void meet(prepare::Pace& pace);
  /// Rank 0 acts and the others wait for it. What each is said to do meanwhile: `doing`, `waiting`.
  void first_acts(int64_t step, const std::string& doing, const std::string& waiting, const std::function<void()>& act);

 private:
  const double timeout_;
};

}  // namespace tessera::train
