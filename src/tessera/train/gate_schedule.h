#pragma once
// Schedules the experts behind a learned gate: which expert takes which sample of a step, agreed by all ranks; the pass
// that each expert runs; the gate's own update.
//
// [Note: ranks that disagree] An expert's pass is the ordinary program of a step in which each dp rank has as many
// samples as chose it there (Plan::shares). A rank of which none did runs dummy micro-batches: it joins the gathers, and
// the reductions with zeros. So ranks always run the same collectives, and what they must agree on is only the counts.
//
// [Note: dealt samples] A pass takes as long as the rank with the most samples of its expert. So, when the counts are known,
// samples go to other ranks until each has as many of an expert as the others (plan/deal.h): the whole sample as it was
// drawn, noise and all, since draws belong to samples. A rank sends to those that have its place on the other axes of the
// mesh. Who receives a sample asks the gate about it again, which has the same answer there, and its share of the gate's
// gradient is made where the expert ran it.
//
// [Note: pairs of experts] What does not divide among the ranks leaves a last micro-batch in which only some of them have a
// sample. Where the plan has passes run side by side (Plan::together), such samples of two experts are dealt to different ranks,
// which compute them at one time ([Note: side by side] of plan/compile/issue.h).
//
// [Note: plans by use] With experts.by_use an expert's passes run by the plan of Planned::by_use that suits how often samples
// chose it up to the last checkpoint of checkpoint.every. Between them nothing changes, nor at a checkpoint that a signal or
// the clock asked for: a run that is stopped and goes on runs what it would have run. The checkpoint has the frequencies, and
// what was counted since.
//
//   auto experts = make_expert_schedule(job, recipe, data, ranks);      // of a job with a gate or without one
#include <array>
#include <map>
#include <set>

#include "tessera/plan/deal.h"
#include "tessera/train/expert_schedule.h"
#include "tessera/train/ranks.h"

namespace tessera::train {

class GateSchedule final : public ExpertSchedule {
 public:
  /// All outlive it.
  GateSchedule(const job::Job& job, const recipe::Recipe& recipe, const std::vector<prepare::StageData>& data,
               Ranks& ranks);

  void begin_part(size_t part, const planning::PartPlan& plan, const net::Denoiser& model,
                  plan::Programs programs) override;
  int64_t arena() const override { return arena_; }
  int64_t host_arena() const override { return host_arena_; }
  /// A pass for each expert that some sample chose, or of a soft gate for all. Soft, all predict here first, without a
  /// graph, for the sum that the loss is of.
  std::vector<ExpertPass> passes(const plan::Visit& visit, const diffusion::TrainingSamples& samples,
                                 engine::Engine& engine) override;
  void book(const ExpertPass& pass, const Decision& decision, const diffusion::FlowMatching& objective) override;
  /// The gate's own update, unless a pass was skipped. Loss is the sum over the passes, the norm that of all their
  /// gradients together.
  report::StepMetrics end(const plan::Visit& visit) override;

  bool rebalances() const override { return false; }
  int64_t own_samples() const override { return static_cast<int64_t>(own_.size()); }  ///< that this rank ran
  const job::GateRouter* router() const override { return &router_; }
  void write(int64_t step, checkpoint::Manifest& manifest) const override;
  std::vector<checkpoint::Piece> pieces(engine::Store& store) const override;
  void resume(engine::Store& store, checkpoint::TrainingCheckpoint& saved) override;
  void save_model(const std::filesystem::path& folder) const override;
  void load_model(const std::filesystem::path& folder) override;

 private:
  struct Own {
    int64_t place;
    std::vector<float> inputs;
    diffusion::Gate::Answer answer;
    double t = 0;  // of its timestep
  };
  /// Of ranks that share a sample one speaks for it.
  bool speaks(int rank) const;
  /// Asks the gate about this rank's samples, agrees with the other ranks, and deals.
  void route(int64_t step, const diffusion::TrainingSamples& samples, engine::Engine& engine);
  Own ask(int64_t step, int64_t place, const diffusion::TrainingSample& sample) const;
  void agree();
  /// Sends what others are to run of this rank's samples, and takes what it is to run of theirs.
  void deal(int64_t step, const diffusion::TrainingSamples& samples, engine::Engine& engine);
  void assign();
  void count_use();
  void book_seconds(size_t expert);
  /// Soft: the predictions of all experts for this rank's samples, summed by their weights.
  void mix(int64_t step, const diffusion::TrainingSamples& samples, engine::Engine& engine);
  /// Sums the gate's gradient over all ranks, in their order, and moves it.
  void learn(double lr);
  /// The plan that an expert's passes run by.
  const plan::Plan& plan_of(size_t expert) const { return planned_->by_use.empty() ? plan() : by_use(chosen_[expert]); }
  const plan::Plan& by_use(size_t which) const { return planned_->by_use[which].plan; }
  std::vector<int64_t> micro_batches() const;
  /// Chooses each expert's plan by `frequencies_`, from `step` on; says so at the begin of a part (0), and where one changes.
  /// Does nothing without experts.by_use.
  void choose_plans(int64_t step);
  /// Behind a step: counts its samples, and at a checkpoint of checkpoint.every chooses anew.
  void follow_use(int64_t step);
  /// A step of this rank by `part` in which the dp ranks have so many samples.
  plan::Program compile(plan::Plan part, const std::vector<int64_t>& shares) const;
  /// Of this rank, for as many samples as chose the expert. Compiled when first asked for; then all ranks compare what
  /// they will run.
  plan::ProgramPtr program(size_t expert);

  job::GateRouter router_;
  Ranks& ranks_;
  const planning::Planned* planned_ = nullptr;  // of the part that runs
  int64_t arena_ = 0, host_arena_ = 0;
  plan::ProgramPtr evaluate_;  // of mix
  /// By expert, micro-batches of the fullest rank, and own samples: all that a rank's program depends on.
  std::map<std::array<int64_t, 3>, plan::ProgramPtr> known_;
  std::set<std::pair<size_t, int64_t>> compared_;  // plan by use, and micro-batches of the fullest rank
  std::vector<size_t> chosen_;                     // of each expert: the plan by use; all the first without
  std::vector<double> frequencies_;                // by which; newer samples weigh more
  std::vector<int64_t> counted_;                   // samples of each expert since they were taken

  comm::Group* peers_ =
      nullptr;  // that have this rank's place on all axes but those of samples; null: nothing is dealt
  diffusion::TrainingSamples dealt_;          // that this rank runs
  std::vector<Own> own_;                      // by place
  std::vector<size_t> active_;                // in the order of their passes
  plan::ExpertPairs pairs_;                   // that are active, and adjacent there
  plan::ExpertShares shares_;                 // [expert][dp rank]
  std::vector<std::vector<int64_t>> places_;  // [expert]: of this rank's samples
  std::map<int64_t, at::Tensor> sums_;        // by place
  std::vector<std::vector<double>> by_weight_;
  report::StepMetrics::Gate gate_;
  double loss_ = 0, squares_ = 0;  // over the passes
  double pass_began_ = 0;          // seconds
  bool whole_ = true;              // no pass was skipped
};

/// A schedule by noise level, a gate that chooses for each sample, or a student with its teacher (distillation.cpp). All arguments outlive it.
std::unique_ptr<ExpertSchedule> make_expert_schedule(const job::Job& job, const recipe::Recipe& recipe,
                                                     const std::vector<prepare::StageData>& data, Ranks& ranks);

}  // namespace tessera::train
