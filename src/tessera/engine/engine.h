#pragma once
// A model on this rank: its shards, their optimiser, and what runs programs over both. Training steps, samples and encoders are
// nothing but lists of instructions: what one means is in interpreter.h, when it runs in lanes.h. Trainer, sampler, encoders,
// bench and verify have an engine each.
//
//   Engine engine(model.units(), spec, plan, comm, rank, {});
//   engine.use(programs);
//   engine.optimise(std::make_unique<optim::AdamW>(options));
//   StepRun step = engine.run({.program = programs.train, .step = 1}, objective, report);      // up to the norm
//   engine.finish(std::move(step), control);                                                   // and the updates
//   std::vector<Tensor> out = engine.forward(programs.sample, {batch_cond, batch_uncond});
#include "tessera/engine/graphs.h"
#include "tessera/engine/interpreter.h"
#include "tessera/engine/lanes.h"
#include "tessera/engine/step_times.h"

namespace tessera::engine {

class Engine {
 public:
  /// Units and comm outlive it. `plan`: that of any program that will run; it places the buffers that last between
  /// steps.
  Engine(const Interpreter::Units& units, const plan::ModelSpec& spec, const plan::Plan& plan, comm::Comm& comm,
         int rank, EngineOptions options = {});
  ~Engine();

  /// Makes the optimiser's states the first time; later an optimiser of the same form takes over.
  void optimise(std::unique_ptr<const net::UnitUpdate> optimiser);
  /// Makes the arena and the gradient buffers for the programs of a part of a run. `arena`: bytes that other programs
  /// need, and `host_arena` of the host tier. All ranks call it together and compare the collectives that they will run.
  /// Parameters and states stay. No step page-locks memory after it.
  void use(const plan::Programs& programs, int64_t arena = 0, int64_t host_arena = 0);
  /// The same for one program that runs forward alone.
  void use(const plan::Program& program);

  /// A training step of `pass.expert` up to and including its `norm`. It runs the updates that the step before deferred.
  StepRun run(const Pass& pass, net::Objective& objective, const Report& report);
  /// Passes of several experts side by side, at most Plan::together of them, up to and including their norms.
  struct Side {
    const Pass& pass;
    net::Objective& objective;
    Report report;
  };
  std::vector<StepRun> run(const std::vector<Side>& sides);
  /// The instructions after `norm`. Without `control` nothing is updated: the step is skipped, or was updated in its
  /// backward. Of passes side by side each is finished, in their order.
  void finish(StepRun step, std::optional<net::StepControl> control);
  /// Runs the updates that the step before deferred (plan::compile_updates).
  void update(const plan::ProgramPtr& program, int64_t step);
  /// Activates an expert. A thread of its own brings its buffers to the device, in the order in which a step needs
  /// them.
  void swap(size_t expert) { store_.switch_to(static_cast<int>(expert)); }
  /// The last unit's boundary tensor with all tokens, one a micro-batch, computed by the active expert; or by its base, or by
  /// units of another form.
  std::vector<Tensor> forward(const plan::ProgramPtr& program, const std::vector<net::Batch>& batches, int64_t step = 0,
                              bool without_adapters = false, const OtherForm* form = nullptr);
  /// A frozen network of other sizes beside the model: with shards of its own, in the same lanes, arena and trace. Before use();
  /// units outlive the engine.
  void add_teacher(const Interpreter::Units& units, const plan::ModelSpec& spec, const plan::Plan& plan, int rank);
  Store& teacher() { return teacher_->store; }
  /// What forward() gives, of it.
  std::vector<Tensor> forward_teacher(const plan::ProgramPtr& program, const std::vector<net::Batch>& batches,
                                      int64_t step);
  /// Saves a checkpoint, all ranks together: calls `write` for this rank's shards and, when all have written, `commit`. The
  /// ranks wait fault.timeout for each other behind both.
  void checkpoint(const plan::ProgramPtr& program, int64_t step, const std::function<void()>& write,
                  const std::function<void()>& commit);

  Store& store() { return store_; }
  Interpreter& interpreter() { return interpreter_; }
  /// The numbers of a pass; `side`: of those side by side.
  StepNumbers& numbers(size_t side = 0) { return side == 0 ? interpreter_.numbers() : beside_->interpreter.numbers(); }
  StepTimes& times() { return times_; }
  Lanes& lanes() { return lanes_; }
  /// Null without EngineOptions::graphs, and on a CPU.
  StepGraphs* graphs() { return graphs_ ? &*graphs_ : nullptr; }
  int64_t host_bytes() const;

 private:
  void make_arena(int64_t bytes, const std::vector<const plan::Schedule*>& used);
  std::vector<Tensor> forward(Interpreter& by, const std::shared_ptr<ScheduleRun>& run,
                              const std::vector<net::Batch>& batches);
  void run_whole(const std::shared_ptr<ScheduleRun>& run);
  std::shared_ptr<ScheduleRun> training(const Side& side, bool beside);
  void begin(const Lanes::Runs& runs, bool timed = true);
  void end(const Lanes::Runs& runs);

  /// The shards and states of an inactive expert, with an arena and gradients of its own: for the pass beside the first.
  struct Beside {
    Store store;
    Interpreter interpreter;
    Beside(const Interpreter::Units& units, const plan::ModelSpec& spec, const Store& lender, comm::Comm& comm,
           const plan::Plan& plan, int rank, const EngineOptions& options)
        : store(lender), interpreter(units, spec, store, comm, plan, rank, options) {}
  };

  /// The teacher's shards, in whose passes the arena is its.
  struct Teacher {
    Store store;
    Interpreter interpreter;
    const int64_t batch_bytes;
    Teacher(const Interpreter::Units& units, const plan::ModelSpec& spec, comm::Comm& comm, const plan::Plan& plan,
            int rank, at::Device device);
  };

  comm::Comm& comm_;
  const int64_t batch_bytes_;  // of a micro-batch, with its targets
  Store store_;
  StepTimes times_;
  Interpreter interpreter_;
  std::unique_ptr<Beside> beside_;    // null: all passes run one after the other
  std::unique_ptr<Teacher> teacher_;  // null: none, or it is an expert of the store
  Lanes lanes_;                       // its threads use all of the above
  std::optional<StepGraphs> graphs_;
  std::unique_ptr<const net::UnitUpdate> optimiser_;
  bool has_states_ = false;
  Lanes::Runs in_step_;                 // between run and finish: all of them, until the last one is finished
  size_t unfinished_ = 0;               // of these
  std::vector<plan::ProgramPtr> used_;  // programs whose collectives all ranks have compared
};

}  // namespace tessera::engine
