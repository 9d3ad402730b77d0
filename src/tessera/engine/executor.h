#pragma once
// Interprets a program: training steps, samples and encoders are nothing but lists of instructions.
//
//   Executor executor(model.units(), store, comm, plan, rank, {});
//   StepRun step = executor.run(pass, objective, report, &optimiser);      // up to the norm
//   executor.finish(std::move(step), control);                             // and the updates
//   std::vector<Tensor> out = executor.forward(sample_program, step, {batch_cond, batch_uncond});
#include <optional>

#include "tessera/checkpoint/in_place.h"
#include "tessera/comm/comm.h"
#include "tessera/device/failure.h"
#include "tessera/device/streams.h"
#include "tessera/engine/device_progress.h"
#include "tessera/engine/device_times.h"
#include "tessera/engine/exposed.h"
#include "tessera/engine/in_effect.h"
#include "tessera/engine/memory/disk.h"
#include "tessera/engine/memory/host_memory.h"
#include "tessera/engine/memory/lane.h"
#include "tessera/engine/memory/uploads.h"
#include "tessera/engine/memory/workers.h"
#include "tessera/engine/stage_messages.h"
#include "tessera/engine/step_run.h"
#include "tessera/engine/unit_run.h"
#include "tessera/net/model.h"
#include "tessera/net/unit_update.h"
#include "tessera/plan/nvme.h"
#include "tessera/plan/schedule.h"

namespace tessera::engine {

struct MicroRun;    // executor_run.h
class StepNumbers;  // executor_numbers.cpp

struct ExecutorOptions {
  bool input_grad = false;    ///< keep the gradients of each micro-batch's inputs (verification)
  bool poison = false;        ///< fill released slots with NaN, so that a use after release shows (tests)
  plan::DiskPlace nvme = {};  ///< of activations that are offloaded to disk
  std::string trace = {};     ///< file for the executed instructions; empty: none
  int local_ranks = 1;        ///< ranks that share this machine's cores
  bool cut_tokens = true;     ///< ranks of cp, sp and tp share the tokens; else each runs all of them (text encoders)
};

/// Reports the instruction a rank is at, for heartbeats and fault messages. The thread of the instruction's lane calls
/// it before the instruction (`ends` false) and, unless that failed, after it (`ends` true).
using Whereabouts = std::function<void(int64_t step, int index, const plan::Instruction& instruction, bool ends)>;

class Executor {
 public:
  /// `plan`: that of any program that will run; mesh, dtypes and the units' strategies are the same in all of them.
  /// `spec`: what the units were measured to take and to send; read here alone.
  Executor(const std::vector<std::unique_ptr<net::Unit>>& units, const plan::ModelSpec& spec, Store& store,
           comm::Comm& comm, const plan::Plan& plan, int rank, ExecutorOptions options);
  ~Executor();

  /// Takes, and page-locks for a device, the host memory of programs that will run: their arena, and what they bring to the
  /// device before the host waits for it.
  void reserve_host(int64_t arena, int64_t uploads);
  /// Lends the groups what their messages use (comm.h): the arena, and to those within units and between stages the room for
  /// tensors that is left beside it. The collectives of slots use the arena as a symmetric window, where groups can: all ranks
  /// open it once there is an arena, and close it before that changes.
  void open_windows();
  /// The same of the gradients that stay on the device, once they are there: replicas exchange them.
  void lend_kept();
  void close_windows();
  void on_instruction(Whereabouts whereabouts) { whereabouts_ = std::move(whereabouts); }

  /// A training step up to and including its `norm`. It runs the updates that the step before deferred.
  StepRun run(const Pass& pass, net::Objective& objective, const Report& report, const net::UnitUpdate* update);
  /// The instructions after `norm`. Without `control` nothing is updated: the step is skipped, or was updated in its
  /// backward.
  void finish(StepRun step, std::optional<net::StepControl> control);
  /// Runs the updates that the step before deferred (plan::compile_updates).
  void update(const plan::ProgramPtr& program, int64_t step, const net::UnitUpdate& update);
  /// One result a micro-batch: the last unit's boundary tensor, of all tokens.
  std::vector<Tensor> forward(const plan::ProgramPtr& program, int64_t step, const std::vector<net::Batch>& batches);
  /// Saves a checkpoint, all ranks together: calls `write` for this rank's shards and, when all have written, `commit`. The
  /// ranks wait fault.timeout for each other behind both.
  void checkpoint(const plan::ProgramPtr& program, int64_t step, const std::function<void()>& write,
                  const std::function<void()>& commit);

  /// The ranks that share tokens with this one.
  const Parallel& parallel() const { return parallel_; }
  /// Gradients of each micro-batch's inputs for this rank's tokens, when options.input_grad.
  std::vector<std::vector<Tensor>>& input_grads() { return input_grads_; }
  /// Host memory for offloaded activations and for buffers on their way from or to the disk.
  int64_t host_bytes() const { return host_.size(); }
  int64_t disk_bytes() const { return disk_ ? disk_->size() : 0; }  ///< of activations
  /// The numbers below are asked for from here on. A CPU has them always; on a device they are those of its events, of the
  /// schedules that it is known to have ended: when a step's `norm` reports, of all before that step.
  void read_times();
  /// Seconds that each lane worked since the last call, by lane name.
  std::map<std::string, double> take_busy();
  /// The time that compute waited in training steps since the last call, by cause.
  Exposed take_exposed();
  /// Seconds of forwards and backwards since the last call: what its samples cost this rank.
  double take_work();
  /// The error of the activations that were quantised since the last call.
  CompressionError take_compression_error() { return std::exchange(compression_error_, {}); }
  /// The last executed schedule as lines of schedule.jsonl with times (for reports). Waits for its end.
  const std::vector<std::string>& last_lines();
  /// What the last training step did by each mechanism of its plan, where lines are kept. Waits likewise.
  const InEffect& last_effect();
  void keep_lines(bool keep);
  /// Where each lane of the device is; null on a CPU.
  const std::shared_ptr<DeviceProgress>& progress() const { return progress_; }

 private:
  using Micro = MicroRun;
  using Run = ScheduleRun;
  void begin(Run& run);
  /// Instructions [begin, end) of the list; those of other lanes are handed to their threads.
  void interpret(const std::shared_ptr<Run>& shared, int begin, int end);
  void issue(const std::shared_ptr<Run>& shared, int index);
  void perform(const std::shared_ptr<Run>& shared, int index);
  void follow(Run& run, const plan::Instruction& in);
  void await_turn(const Run& run, int index);
  void join_lanes(const Run& run);
  void end(Run& run);
  void run_whole(const std::shared_ptr<Run>& shared);
  void note_times(const plan::Program& program, int64_t step, const DeviceTimes::Seconds& times, double in_collectives);
  void settle_times(bool wait);
  void reserve_disk(int64_t bytes);
  void execute(Run& run, int index, std::vector<plan::Comm>& done);
  void forward_unit(Run& run, const plan::Instruction& in);
  void recompute_unit(Run& run, const plan::Instruction& in);
  void backward_unit(Run& run, const plan::Instruction& in);
  void weight_gradients(Run& run, const plan::Instruction& in);
  void sort_saved(UnitRun& run, const plan::UnitPlan& plan, int unit, std::vector<SavedStorage> saved) const;
  void compress_unit(UnitRun& run);
  Micro& load(Run& run, int micro);
  void prepare_message(Run& run, int index);
  void take_received(Micro& micro, const plan::Instruction& in, bool train) const;
  /// Whether gradients flow back to the unit that makes the shared conditioning.
  bool wants_conditioning() const { return options_.input_grad || store_.first_trained() == 0; }
  Message outgoing(Micro& micro, const plan::Instruction& in, bool defers_weights) const;
  void finish(Run& run, const plan::Instruction& in, std::vector<plan::Comm>& done);
  LaneThread& lane(plan::Lane lane);
  std::vector<Tensor> loss(Run& run, Micro& micro, int index);
  void norm(Run& run, std::vector<plan::Comm>& done);
  void make_numbers();
  double read_numbers(Run& run);
  void note_share(Run& run, int unit, const Tensor& gradient);
  std::vector<plan::Comm> declared(const Run& run, const plan::Instruction& in) const;
  void gather(const plan::Instruction& in, std::vector<plan::Comm>& done);
  void reduce(const plan::Instruction& in, std::vector<plan::Comm>& done);
  void reduce_outer(const plan::Instruction& in, std::vector<plan::Comm>& done);
  void reduce_partition(const plan::Instruction& in, std::vector<plan::Comm>& done);
  void gather_outer(const plan::Instruction& in, std::vector<plan::Comm>& done);
  void update(const Run& run, const plan::Instruction& in, std::vector<plan::Comm>& done);
  Workers& workers(int threads);

  const std::vector<std::unique_ptr<net::Unit>>& units_;
  Store& store_;
  const DType reduce_dtype_;
  const int rank_;
  const ExecutorOptions options_;
  comm::Group &outer_, &world_;
  const Parallel parallel_;
  const std::vector<plan::DeviceGroup> within_units_;
  /// By unit and buffer; null where the buffer needs no such collective.
  std::vector<std::vector<comm::Group*>> gather_, reduce_, whole_, spread_;
  std::vector<comm::Group*> of_slots_;  // each of gather_ and reduce_ once, in the order in which all ranks made them
  /// Likewise, of sums over tensors: of updates on the compute lane and on the host lane, which may run at once.
  std::vector<std::vector<comm::Group*>> sums_, host_sums_;
  Events events_;
  const bool by_device_;  // messages of tensors are enqueued on streams
  const bool far_;        // computes on a device: `events_` say what was given to it, marks what is done
  std::vector<device::Mark> marks_, prepared_;  // by instruction: what it did; its memory taken, its message made
  device::Mark start_, end_;                    // of the schedule, on the compute lane
  Uploads uploads_;
  std::unique_ptr<StepNumbers> numbers_;
  std::shared_ptr<DeviceProgress> progress_;  // null on a CPU
  std::optional<device::UnderWay> under_way_, swap_under_way_;
  bool times_read_ = false;
  std::deque<std::unique_ptr<DeviceTimes>> unsettled_;  // of schedules that the device may not have ended
  double in_messages_ = 0;                              // seconds of the device, of settled schedules
  LaneThread gather_lane_, reduce_lane_, disk_lane_, fetch_lane_, stash_lane_;
  StageMessages messages_;
  std::map<plan::Lane, std::unique_ptr<LaneThread>> message_lanes_;
  HostMemory host_;
  std::unique_ptr<Disk> disk_;  // of offloaded activations; null: none go to disk
  Whereabouts whereabouts_;
  std::vector<std::vector<Tensor>> input_grads_;
  std::map<std::string, double> busy_;
  double work_ = 0;
  Exposed exposed_;
  CompressionError compression_error_;
  std::unique_ptr<Workers> workers_;       // made when first used
  std::unique_ptr<LaneThread> host_lane_;  // likewise; destroyed before the workers that it calls
  /// The decision on the last step: updates just in time run in the step after it.
  std::optional<net::StepControl> control_;
  bool in_step_ = false;  // between run and finish
  std::optional<checkpoint::GrowingFile> trace_;
  bool keep_lines_ = false;
  InEffect in_effect_;
  plan::AttentionUse attention_;  // of the last training step, where lines are kept
  std::vector<std::string> last_lines_;
  int64_t traced_step_ = -1;
  int base_ = 0;
};

}  // namespace tessera::engine
