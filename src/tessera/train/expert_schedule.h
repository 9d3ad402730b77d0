#pragma once
// The experts that run a step, and the samples of each. A single model is the common case and uses the same code. Of
// experts that own a range of timesteps each step trains one (this file); experts behind a gate share every step,
// sample by sample (gate_schedule.h).
//
//   auto experts = make_expert_schedule(job, recipe, data, comm, mesh, rank);
//   experts->begin_part(0, recipe, planned, programs);
//   for (ExpertPass& pass : experts->passes(visit, samples, engine)) { ...; experts->book(pass, decision, objective); }
//   report::StepMetrics metrics = experts->end(visit);
#include "tessera/checkpoint/training.h"
#include "tessera/diffusion/flow_matching.h"
#include "tessera/engine/engine.h"
#include "tessera/job/gate_router.h"
#include "tessera/job/job.h"
#include "tessera/plan/compile/run_walk.h"
#include "tessera/planning/run_plan.h"
#include "tessera/prepare/stage_data.h"
#include "tessera/train/loader.h"
#include "tessera/train/step_report.h"

namespace tessera::train {

/// One expert's part of a step, or the whole of it.
struct ExpertPass {
  engine::Pass pass;
  diffusion::PassData data;
  bool last = true;     ///< no other pass of the step follows
  bool trains = true;   ///< else ranks exchange their reports alone
  bool beside = false;  ///< runs side by side with the next one of the step
};

class ExpertSchedule {
 public:
  /// `data`: of each part of the run. Experts and recipe outlive it.
  ExpertSchedule(const job::Experts& experts, const recipe::Recipe& recipe, const std::vector<prepare::StageData>& data,
                 int rank);
  virtual ~ExpertSchedule() = default;

  /// What a part of the run draws, from what, and under which programs; all are there as long as it runs.
  virtual void begin_part(size_t part, const planning::PartPlan& plan, const net::Denoiser& model,
                          plan::Programs programs);
  /// Bytes of arena that programs of its own need.
  virtual int64_t arena() const { return 0; }
  virtual int64_t host_arena() const { return 0; }

  size_t expert_of(int64_t step) const { return expert_order_.expert(step); }
  /// The samples that this rank needs of a step of this part. `shares` may have changed since it began.
  std::vector<Wanted> wanted(int64_t step) const;
  /// Before wanted(step) is made: what encoders make of it that talk to other ranks. All ranks together, between steps.
  void encode_captions(int64_t step);
  /// What is run of the step, the same passes in the same order on every rank.
  virtual std::vector<ExpertPass> passes(const plan::Visit& visit, const diffusion::TrainingSamples& samples,
                                         engine::Engine& engine);
  /// The rate of a pass's updates, and what they need where they are made in the backward.
  virtual double learning_rate(const ExpertPass& pass) const { return learning_rate(pass.pass.expert, own_step_); }
  int64_t count_update(size_t expert) { return ++updates_[expert]; }  ///< one more: its number
  /// What a pass came to.
  virtual void book(const ExpertPass& pass, const Decision& decision, const diffusion::FlowMatching& objective);
  /// What the step came to; a gate learns.
  virtual report::StepMetrics end(const plan::Visit& visit);

  /// What the part that runs draws for an expert.
  const diffusion::NoiseSettings& noise(size_t expert) const { return noise_.at(experts_.gated ? 0 : expert); }
  const std::string& name(size_t expert) const { return experts_.list[expert].name; }
  const prepare::StageData& data() const { return data_[place()][part_]; }  ///< of the step that has begun
  int64_t own_step() const { return own_step_; }
  /// Samples of this rank in the step; what a slow rank is measured by.
  virtual int64_t own_samples() const;
  /// Another cut of the batch from the next step on: new training programs.
  void change(plan::Programs programs) { programs_ = std::move(programs); }
  virtual bool rebalances() const { return true; }
  /// The sampler's passes by the right expert: job::Experts::serving, or the gate.
  virtual const job::GateRouter* router() const { return nullptr; }

  /// "the high_noise expert has 417 of 1000 steps" for each; nothing for a single model.
  std::vector<std::string> describe() const;

  /// What a checkpoint after `step` says of all of them: places in the data, rates, updates.
  virtual void write(int64_t step, checkpoint::Manifest& manifest) const;
  /// The pieces of a checkpoint; they borrow from the store.
  virtual std::vector<checkpoint::Piece> pieces(engine::Store& store) const;
  /// The reverse of both. Throws UserError (usage) when the checkpoint has other experts, or they have done other steps
  /// than the recipe gives them.
  virtual void resume(engine::Store& store, checkpoint::TrainingCheckpoint& saved);
  /// What an exported model has beside its experts.
  virtual void save_model(const std::filesystem::path&) const {}
  virtual void load_model(const std::filesystem::path&) {}

 protected:
  const plan::Plan& plan() const { return programs_.train->plan; }
  int dp_rank() const { return plan().mesh.dp_rank(rank_); }
  std::vector<int64_t> own_places() const { return places_of(dp_rank(), data().batch(own_step_)); }
  std::vector<int64_t> places_of(int dp_rank, int64_t batch) const;
  size_t place() const { return experts_.gated ? 0 : expert_; }
  double learning_rate(size_t expert, int64_t own_step) const;
  /// The places of a step whose samples a rank needs.
  virtual std::vector<int64_t> wanted_places(int dp_rank, int64_t batch) const;

  const job::Experts& experts_;
  const diffusion::ExpertOrder expert_order_;
  const int rank_;
  std::vector<int64_t> updates_;         // of each expert
  const recipe::Recipe* now_ = nullptr;  // of the part that runs
  const net::Denoiser* model_ = nullptr;
  plan::Programs programs_;
  plan::RunShape shape_;  // of the part that runs
  size_t part_ = 0, expert_ = 0;
  int64_t own_step_ = 0;
  bool needs_spares_ = false;              // a rank without a sample of a micro-batch runs another's
  std::map<int64_t, at::Tensor> targets_;  // by place, those made of what the model predicts before the step
  report::StepMetrics metrics_;            // of the step
  /// Adds a pass's to the step's.
  void add_by_timestep(const diffusion::LossByTimestep& pass);

 private:
  /// The passes before a step, of whose predictions targets are made.
  void ask(diffusion::Asked asked, plan::AskBase which, int64_t step, const diffusion::PassData& data,
           engine::Engine& engine);
  void check_steps(size_t expert, int64_t done, int64_t step) const;

  const recipe::Recipe& recipe_;                                     // of the whole run
  std::vector<std::vector<prepare::StageData>> data_;                // of each of experts_.places() and part
  std::vector<diffusion::NoiseSettings> noise_;                      // likewise, of the part that runs
  std::tuple<size_t, int64_t, std::vector<int64_t>> captions_of_{};  // part, step and shares that were encoded last
};

}  // namespace tessera::train
