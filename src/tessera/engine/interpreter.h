#pragma once
// What the instructions of a schedule mean: each is done here, on the thread of its lane (lanes.h).
//
//   interpreter.begin(run);                       // takes what the schedule needs beside the arena
//   interpreter.prepare(run, index);              // on the compute thread, where the list has it
//   interpreter.execute(run, index);              // on its lane's thread
//   interpreter.check(run, index);                // it ran the collectives that it declares
#include <optional>

#include "tessera/comm/comm.h"
#include "tessera/engine/collectives.h"
#include "tessera/engine/slice.h"
#include "tessera/engine/step_numbers.h"
#include "tessera/engine/store/disk.h"
#include "tessera/engine/store/workers.h"
#include "tessera/plan/plan.h"

namespace tessera::engine {

struct EngineOptions {
  bool trainable = true;       ///< with gradients and optimiser states
  plan::DiskPlace nvme = {};   ///< of buffers and activations that are offloaded to disk
  bool input_grad = false;     ///< keep the gradients of each micro-batch's inputs (verification)
  bool frozen_passes = false;  ///< some passes are of a frozen form, which keep them too
  bool poison = false;         ///< fill released slots with NaN, so that a use after release shows (tests)
  std::string trace = {};      ///< file for the executed instructions; empty: none
  bool graphs = false;         ///< training steps are graphs of the device, where they can be (graphs.h)
  int local_ranks = 1;         ///< ranks that share this machine's cores
  bool cut_tokens = true;      ///< ranks of cp, sp and tp share the tokens; else each runs all of them (encoders)
};

/// What of a micro-batch was brought to the device.
struct Brought {
  int micro;
  bool compared;     ///< what its loss compares with; else its inputs and tables
  Tensor made = {};  ///< else a table that a unit has made of them, the same in each step of a form
};

class Interpreter {
 public:
  using Units = std::vector<std::unique_ptr<net::Unit>>;

  /// `plan`: that of any program that will run; mesh, dtypes and the units' strategies are the same in all of them.
  /// `spec`: what the units were measured to take and to send; read here alone.
  Interpreter(const Units& units, const plan::ModelSpec& spec, Store& store, comm::Comm& comm, const plan::Plan& plan,
              int rank, EngineOptions options);

  /// Takes, and page-locks for a device, the host memory of programs that will run: their arena, and what they bring to the
  /// device before the host waits for it: so many micro-batches of `batch` bytes.
  void reserve_host(int64_t arena, int64_t batch, int64_t micros);
  /// Lends the groups what their messages use (comm.h): the arena, and to those within units and between stages the room for
  /// tensors that is left beside it.
  void open_windows(const std::vector<const plan::Schedule*>& used);
  void close_windows() { groups_.close_windows(); }
  /// The same of the gradients that stay on the device, once they are there.
  void lend_kept();

  void begin(ScheduleRun& run);
  /// The control of the updates from here on: those that are just in time run in the step after it. Empty: they are skipped.
  void decide(std::optional<net::StepControl> control) { control_ = control; }
  /// A training step begins.
  void begin_step(const ScheduleRun& run);
  /// Takes the memory of an instruction of another lane than compute; false: it takes none.
  bool prepare(ScheduleRun& run, int index);
  void execute(ScheduleRun& run, int index);

  // A training step up to its norm as a graph (graphs.h).
  /// Packs all micro-batches; what of them and of the objective the host knows and gives to the device, as text. nullopt: a
  /// graph of the step cannot be repeated.
  std::optional<std::string> pack(ScheduleRun& run);
  /// Tensors are brought for a graph from here on, in an order that bring_again() repeats; or no more.
  void bring_captured(bool captured);
  /// The step's tensors to where its graph reads them, and to the objective what it would have known.
  void bring_again(ScheduleRun& run, const std::vector<Brought>& order);
  std::vector<Brought> take_brought() { return std::exchange(brought_, {}); }
  const void* uploads_place() const { return uploads_.place(); }
  /// Throws InternalError if the instruction ran other collectives than it declares.
  void check(const ScheduleRun& run, int index) const;

  /// The ranks that share tokens with this one.
  const Parallel& parallel() const { return parallel_; }
  bool has_stages() const { return messages_.active(); }
  StepNumbers& numbers() { return numbers_; }
  /// Gradients of each micro-batch's inputs for this rank's tokens, when options.input_grad, or of a frozen form.
  std::vector<std::vector<Tensor>>& input_grads() { return input_grads_; }
  /// Host memory for offloaded activations and for buffers on their way from or to the disk.
  int64_t host_bytes() const { return host_.size(); }
  int64_t disk_bytes() const { return disk_ ? disk_->size() : 0; }  ///< of activations

 private:
  using Done = std::vector<plan::Comm>;
  void forward(ScheduleRun& run, const plan::Instruction& in);
  void recompute(ScheduleRun& run, const plan::Instruction& in);
  void backward(ScheduleRun& run, const plan::Instruction& in);
  void weight_gradients(ScheduleRun& run, const plan::Instruction& in);
  void move_activations(UnitRun& run, const plan::Instruction& in);
  std::vector<Tensor> loss(ScheduleRun& run, MicroRun& micro, int index);
  void finish(ScheduleRun& run, const plan::Instruction& in, Done& done);
  void bring_compared(const ScheduleRun& run, int micro);
  Tensor bring_made(const Tensor& table);
  void norm(ScheduleRun& run, Done& done);
  void flush(const ScheduleRun& run, Done& done);
  void reserve_disk(int64_t bytes);
  void sort_saved(UnitRun& run, const plan::UnitPlan& plan, int unit, std::vector<SavedStorage> saved) const;
  MicroRun& load(ScheduleRun& run, int micro);
  void count(ScheduleRun& run, int micro, const net::Batch& batch) const;
  net::Batch of_stage(const ScheduleRun& run, net::Batch batch) const;
  void take_received(MicroRun& micro, const plan::Instruction& in, bool train) const;
  Message outgoing(MicroRun& micro, const plan::Instruction& in, bool defers_weights) const;
  std::vector<plan::Comm> declared(const ScheduleRun& run, const plan::Instruction& in) const;
  Workers& workers(int threads);
  /// Whether gradients flow back to the unit that makes the shared conditioning.
  bool wants_conditioning() const { return options_.input_grad || store_.first_trained() == 0; }

  const Units& units_of(const ScheduleRun& run) const { return run.form ? run.form->units : units_; }
  const plan::UnitSpec& spec_of(const ScheduleRun& run, int unit) const {
    return run.form ? run.form->spec.units[static_cast<size_t>(unit)] : store_.spec(unit);
  }

  const Units& units_;
  Store& store_;
  const int rank_;
  const EngineOptions options_;
  const bool far_, by_device_;  // a device computes; messages of tensors are enqueued on its streams
  comm::Group& world_;
  const Parallel parallel_;
  const std::vector<plan::DeviceGroup> within_units_;
  StageMessages messages_;
  SlotGroups groups_;
  StepNumbers numbers_;
  Uploads uploads_;
  std::vector<Brought> brought_;  // since bring_captured()
  bool captures_ = false;
  int64_t room_made_ = 0, most_made_ = 0;  // of the uploads for tables that units have made: of this step, and of any
  HostMemory host_;
  std::unique_ptr<Disk> disk_;  // of offloaded activations; null: none go to disk
  std::vector<std::vector<Tensor>> input_grads_;
  std::optional<net::StepControl> control_;
  std::unique_ptr<Workers> workers_;  // of the host lane alone; made when first used
};

}  // namespace tessera::engine
