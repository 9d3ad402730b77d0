#pragma once
// One step of a run whose samples choose their experts by a gate: who has which sample, agreed by all ranks; what each
// expert then runs; what the gate learns from it.
//
//   GatedStep gated(router, comm, mesh, rank);
//   gated.begin_part(recipe, spec, plan);
//   calls.pass = [&](size_t expert, bool) {
//     objective.begin(step, plan, rank, &gated.routed(expert));
//     executor.train(gated.schedule(expert), step, ..., adamw);
//     return true;
//   };
//   gated.run(step, objective, plan, executor, metrics, calls);
//
// [Note: ranks that disagree] An expert's pass is the ordinary schedule of a step in which each dp rank has as many
// samples as chose it there (Plan::shares). A rank of which none did runs idle micro-batches: it joins the gathers, and
// the reductions with zeros. So ranks always run the same collectives, and what they must agree on is only the counts.
#include <map>
#include <set>

#include "tessera/engine/executor.h"
#include "tessera/job/gate_router.h"
#include "tessera/report/metrics.h"
#include "tessera/train/objective.h"

namespace tessera::train {

class GatedStep {
 public:
  /// All outlive it but `mesh`.
  GatedStep(job::GateRouter& router, comm::Comm& comm, const Mesh& mesh, int rank);

  /// Of a part of the run, and there as long as that: its values, the model as measured, the plan of a step without a
  /// gate.
  void begin_part(const recipe::Recipe& recipe, const plan::ModelSpec& spec, const plan::Plan& plan);
  /// Largest arena of any schedule.
  int64_t arena() const { return arena_; }

  struct Calls {
    std::function<void(size_t expert)> bring;  ///< makes the executor's store about an expert
    /// Runs an expert's part of the step, by schedule() and routed(), and sets the metrics' loss and norms; false when
    /// its update was skipped. `last`: no other follows.
    std::function<bool(size_t expert, bool last)> pass;
  };
  /// The whole step: a pass for each expert that some sample chose, or of a soft gate for all, the same in the same
  /// order on every rank; then the gate's own update, unless a pass was skipped, which is what it gives false for. Loss
  /// is the sum over the passes, the norm that of all their gradients together. `plan`: what the executor reads; its
  /// shares are the passes' meanwhile.
  bool run(int64_t step, Objective& objective, plan::Plan& plan, engine::Executor& executor,
           report::StepMetrics& metrics, const Calls& calls);

  // of the pass that runs
  const Routed& routed(size_t expert) const { return routed_[expert]; }
  /// Of this rank, for as many samples as chose the expert. Compiled when first asked for; then all ranks compare what
  /// they will run.
  const plan::Schedule& schedule(size_t expert);
  int64_t own_samples() const { return static_cast<int64_t>(own_.size()); }  ///< of this dp rank, in the step

 private:
  struct Own {
    int64_t place;
    std::vector<float> inputs;
    diffusion::Gate::Answer answer;
  };
  /// Of ranks that share a sample one speaks for it.
  bool speaks(int rank) const;
  /// Asks the gate about this rank's samples of the step that `objective` has begun, and agrees with the other ranks.
  void route(const Objective& objective, int64_t step);
  void agree();
  void assign();
  /// Soft: the predictions of all experts for this rank's samples, without a graph, summed by their weights.
  void mix(const Objective& objective, const plan::Plan& plan, engine::Executor& executor, int64_t step,
           const Calls& calls);
  /// Sums the gate's gradient over all ranks, in their order, and moves it.
  void learn(double lr);
  plan::Schedule compile(const std::vector<int64_t>& shares) const;

  job::GateRouter& router_;
  comm::Group& world_;
  comm::Comm& comm_;
  const Mesh mesh_;
  const int rank_;
  const recipe::Recipe* recipe_ = nullptr;
  const plan::ModelSpec* spec_ = nullptr;
  const plan::Plan* plan_ = nullptr;
  int64_t arena_ = 0;
  plan::Schedule pass_;  // of mix
  /// By micro-batches of the fullest rank, and own samples.
  std::map<std::pair<int64_t, int64_t>, plan::Schedule> known_;
  std::set<int64_t> compared_;  // micro-batches of the fullest rank

  std::vector<Own> own_;
  std::vector<size_t> active_;
  std::vector<std::vector<int64_t>> shares_;  // [expert][dp rank]
  std::vector<Routed> routed_;
  std::map<int64_t, at::Tensor> sums_;  // by place
  std::vector<std::vector<double>> by_weight_;
  report::StepMetrics::Gate metrics_;
};

}  // namespace tessera::train
