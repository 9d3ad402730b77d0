#pragma once
// When the instructions of schedules ran: how long lanes worked, what compute waited for, what the mechanisms of the plan did,
// and traces. A CPU's are those of the host's clock. A device's are those of its events: the host only gives instructions to
// streams and runs ahead, so its clock says nothing of them.
//
//   auto run = times.begin(program, step);                  // its instructions are about to be issued
//   run->began(index), run->ended(index, t0);               // on the lane's thread, around what it does
//   times.end(std::move(run));                              // behind all lanes
//   times.take_busy(), times.last_effect().text();          // of a device: of the schedules that it is known to have ended
//
// Exposed time is what compute waited for, by cause; the simulator computes the same for a predicted step
// (plan/simulate/simulate.h).
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/in_place.h"
#include "tessera/device/streams.h"
#include "tessera/plan/attention.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::engine {

/// Lanes whose instructions are done by code of the host; those of the others are enqueued on a stream.
constexpr bool works_on_host(plan::Lane lane) { return lane == plan::Lane::disk || lane == plan::Lane::host; }

/// By instruction: when it began, after all that it waits for, and when it ended.
using InstructionTimes = std::vector<std::array<double, 2>>;

/// A schedule's times since it began: those of the host, and, on a device, those of events of its streams.
class ScheduleTimes {
 public:
  /// `timed`: with events.
  ScheduleTimes(plan::ProgramPtr program, int64_t step, bool timed);
  double now() const;
  void began(int index);
  /// `t0`: when it began for the host. On a device it ends for the host when its work has been given.
  void ended(int index, double t0);
  /// Behind all lanes.
  void close();

  bool passed() const { return end_.passed(); }
  void await() const { end_.await(); }
  /// Without events those of the host. Else since the device came to the schedule; of lanes that work on the host their own.
  InstructionTimes seconds() const;
  bool timed() const { return !began_.empty(); }
  double in_collectives() const { return in_collectives_; }  ///< seconds of the host, until close()

  const plan::Program& program() const { return *program_; }
  int64_t step() const { return step_; }

 private:
  const plan::ProgramPtr program_;
  const int64_t step_;
  InstructionTimes host_;
  double began_at_, in_collectives_;
  device::Mark start_{/*timed=*/true}, end_{/*timed=*/true};
  std::vector<device::Mark> began_, ended_;
};

/// Seconds that the compute lane waited, by the kind of instruction that it waited for: collectives (of other lanes, or
/// inside its own instructions), copies between device, host and disk, and messages of other pipeline stages; `dispatch`:
/// with nothing to wait for, until its next instruction began.
struct Exposed {
  double comm = 0, copy = 0, stages = 0, dispatch = 0;
  Exposed& operator+=(const Exposed& other) {
    comm += other.comm, copy += other.copy, stages += other.stages, dispatch += other.dispatch;
    return *this;
  }
};

/// The seconds for which each instruction kept the compute lane waiting.
std::vector<double> waited_for(const std::vector<plan::Instruction>& list, const InstructionTimes& times);
/// Their sums by cause, without the collectives inside compute instructions.
Exposed exposed_time(const std::vector<plan::Instruction>& list, const InstructionTimes& times,
                     const std::vector<double>& waited);

/// Of one rank. A block counts once, however many micro-batches there are; instructions count each.
struct InEffect {
  /// Instructions of a kind. Hidden: the compute lane waited for less than a twentieth of its time.
  struct Hidden {
    int all = 0, hidden = 0;
  };
  int blocks = 0;                                     ///< that the rank computes
  int recomputed = 0, offloaded = 0, compressed = 0;  ///< blocks whose activations were
  Hidden gathers, reductions, fetches, stashes, messages;
  int late_updates = 0;   ///< of the step before, deferred to just before a forward
  int early_updates = 0;  ///< before the norm was known: in the backward
  int host_updates = 0;   ///< on the host's cores
  /// The most updates at one time that had not ended though their gradients were complete; those of the step before are
  /// from the begin of the step on.
  int pending = 0;
  std::string attention;  ///< the kernels that attention took (plan::AttentionUse), on a GPU

  /// What acted, with its counts; mechanisms that did nothing are left out.
  std::string text() const;
};

/// `waited`: waited_for() of both; `blocks`: by unit, whether it is one of
/// the model's blocks.
InEffect in_effect(const std::vector<plan::Instruction>& list, const InstructionTimes& times,
                   const std::vector<double>& waited, const std::vector<bool>& blocks);

class StepTimes {
 public:
  /// `far`: a device computes; `by_device`: it exchanges tensors too. `blocks`: by unit, whether it is one of the model's
  /// blocks. `trace`: file for the executed instructions; empty: none.
  StepTimes(int rank, bool far, bool by_device, std::vector<bool> blocks, const std::string& trace);

  std::unique_ptr<ScheduleTimes> begin(plan::ProgramPtr program, int64_t step, bool timed = true) const;
  /// Whether somebody wants the times of each instruction: a trace, or lines of the last schedule.
  bool of_instructions() const { return trace_ || keep_lines_; }
  void end(std::unique_ptr<ScheduleTimes> times);
  /// Adds a schedule's times. `in_collectives`: seconds of collectives inside compute.
  void note(const plan::Program& program, int64_t step, const InstructionTimes& times, double in_collectives);
  /// Notes the times of schedules that the device has ended; of all of them with `wait`.
  void settle(bool wait);

  /// The numbers below are asked for from here on. A CPU has them always; on a device they are those of the schedules that it
  /// is known to have ended: when a step's `norm` reports, of all before that step.
  void read();
  /// Seconds that each lane worked since the last call, by lane name.
  std::map<std::string, double> take_busy() { return taken(busy_); }
  /// The time that compute waited in training steps since the last call, by cause.
  Exposed take_exposed() { return taken(exposed_); }
  /// Seconds of forwards and backwards since the last call: what its samples cost this rank.
  double take_work() { return taken(work_); }
  /// Whether the two below are kept from here on.
  void keep_lines(bool keep);
  /// The last executed schedule as lines of schedule.jsonl with times (for reports). Waits for its end.
  const std::vector<std::string>& last_lines();
  /// What the last training step did by each mechanism of its plan. Waits likewise.
  const InEffect& last_effect();
  /// For attention to note what it takes; null where nobody asks.
  plan::AttentionUse* attention() { return keep_lines_ ? &attention_ : nullptr; }
  void forget_attention() { attention_ = {}; }  ///< of the step before

 private:
  template <class T>
  T taken(T& numbers) {
    settle(/*wait=*/false);
    return std::exchange(numbers, T{});
  }

  const int rank_;
  const bool far_, by_device_;
  const std::vector<bool> blocks_;
  bool read_ = false;
  std::deque<std::unique_ptr<ScheduleTimes>> unsettled_;  // of schedules that the device may not have ended
  double in_messages_ = 0;                                // seconds of the device, of settled schedules
  std::map<std::string, double> busy_;
  double work_ = 0;
  Exposed exposed_;
  std::optional<checkpoint::GrowingFile> trace_;
  bool keep_lines_ = false;
  InEffect in_effect_;
  plan::AttentionUse attention_;  // of the last training step, where lines are kept
  std::vector<std::string> last_lines_;
  int64_t traced_step_ = -1;
  int base_ = 0;
};

}  // namespace tessera::engine
