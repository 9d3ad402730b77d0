#pragma once
// A model on this rank: its shards, their optimiser, and the executor that runs programs over both. Trainer, sampler,
// encoders, bench and verify have one each.
//
//   Engine engine(model.units(), spec, plan, comm, rank, {});
//   engine.use(programs);
//   engine.optimise(std::make_unique<optim::AdamW>(options));
//   StepRun step = engine.run({.program = programs.train, .step = 1}, objective, report);
//   engine.finish(std::move(step), control);
#include "tessera/engine/executor.h"

namespace tessera::engine {

struct EngineOptions {
  bool trainable = true;      ///< with gradients and optimiser states
  plan::DiskPlace nvme = {};  ///< of buffers that are offloaded to disk
  bool input_grad = false;    ///< keep the gradients of each micro-batch's inputs (verification)
  bool poison = false;        ///< fill released slots with NaN (tests)
  std::string trace = {};     ///< file for the executed instructions; empty: none
  int local_ranks = 1;        ///< ranks that share this machine's cores
  bool cut_tokens = true;     ///< ranks of cp, sp and tp share the tokens; else each runs all of them (encoders)
};

class Engine {
 public:
  /// Units and comm outlive it. `plan`: that of any program that will run; it places the buffers that last between
  /// steps.
  Engine(const std::vector<std::unique_ptr<net::Unit>>& units, const plan::ModelSpec& spec, const plan::Plan& plan,
         comm::Comm& comm, int rank, EngineOptions options = {});

  /// Makes the optimiser's states the first time; later an optimiser of the same form takes over.
  void optimise(std::unique_ptr<const net::UnitUpdate> optimiser);
  /// Makes the arena and the gradient buffers for the programs of a part of a run. `arena`: bytes that other programs
  /// need, and `host_arena` of the host tier. All ranks call it together and compare the collectives that they will run.
  /// Parameters and states stay. No step page-locks memory after it.
  void use(const plan::Programs& programs, int64_t arena = 0, int64_t host_arena = 0);
  /// The same for one program that runs forward alone.
  void use(const plan::Program& program);

  /// The first half of a training step of `pass.expert`, and the second (step_run.h).
  StepRun run(const Pass& pass, net::Objective& objective, const Report& report);
  void finish(StepRun step, std::optional<net::StepControl> control) { executor_.finish(std::move(step), control); }
  /// Runs the updates that a step deferred.
  void update(const plan::ProgramPtr& program, int64_t step) { executor_.update(program, step, *optimiser_); }
  /// Activates an expert. A thread of its own brings its buffers to the device, in the order in which a step needs
  /// them.
  void swap(size_t expert) { store_.switch_to(static_cast<int>(expert)); }
  /// The last unit's boundary tensor with all tokens, one a micro-batch, computed by the active expert.
  std::vector<Tensor> forward(const plan::ProgramPtr& program, const std::vector<net::Batch>& batches,
                              int64_t step = 0) {
    return executor_.forward(program, step, batches);
  }
  void checkpoint(const plan::ProgramPtr& program, int64_t step, const std::function<void()>& write,
                  const std::function<void()>& commit) {
    executor_.checkpoint(program, step, write, commit);
  }

  Store& store() { return store_; }
  Executor& executor() { return executor_; }
  int64_t host_bytes() const { return store_.host_bytes() + executor_.host_bytes(); }

 private:
  void make_arena(int64_t bytes);

  comm::Comm& comm_;
  const int64_t batch_bytes_;  // of a micro-batch, with its targets
  Store store_;
  Executor executor_;
  std::unique_ptr<const net::UnitUpdate> optimiser_;
  bool has_states_ = false;
  std::vector<plan::ProgramPtr> used_;  // programs whose collectives all ranks have compared
};

}  // namespace tessera::engine
