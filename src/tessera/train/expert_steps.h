#pragma once
// The steps of a run by expert: whose each is, and what that expert has for it: data, draws, learning rate and updates,
// counted in steps of its own, so that it learns as it would alone. A single model goes the same way with every step.
// Experts of a gate share steps, data and draws; only their updates are counted apart, of steps in which a sample chose
// them.
//
//   ExpertSteps steps(job.experts, recipe, data);
//   steps.begin_part(0, recipe, *job.model);
//   steps.begin(17);                                // step 17 of the run
//   steps.objective().begin(steps.own_step(), plan, rank);
#include "tessera/checkpoint/training.h"
#include "tessera/job/experts.h"
#include "tessera/train/objective.h"

namespace tessera::train {

class ExpertSteps {
 public:
  /// `data`: of each part of the run. Experts and recipe outlive it.
  ExpertSteps(const job::Experts& experts, const recipe::Recipe& recipe, const std::vector<prepare::StageData>& data);

  /// What the part draws and from what; `recipe` and `model` are there as long as the part runs.
  void begin_part(size_t part, const recipe::Recipe& recipe, const net::Denoiser& model);
  void begin(int64_t step);
  /// Of a gate: the step goes on with this expert.
  void choose(size_t expert) { expert_ = expert; }

  size_t expert_of(int64_t step) const { return turns_.expert(step); }

  // of the step that has begun
  size_t expert() const { return expert_; }
  const std::string& name() const { return experts_.list[expert_].name; }
  int64_t own_step() const { return own_step_; }  ///< which of the expert's own, from 1 on
  Objective& objective() { return objectives_[place()]; }
  const prepare::StageData& data() const { return data_[place()][part_]; }
  double learning_rate() const { return learning_rate(expert_, own_step_); }
  int64_t update() { return ++updates_[expert_]; }  ///< one more: its number
  int64_t updates(size_t expert) const { return updates_[expert]; }

  /// "the high_noise expert has 417 of 1000 steps" for each; nothing for a single model.
  std::vector<std::string> told() const;

  /// What a checkpoint after `step` says of all of them: places in the data, rates, updates.
  void write(int64_t step, checkpoint::Manifest& manifest) const;
  /// The pieces of a checkpoint; they borrow from the store.
  std::vector<checkpoint::Piece> pieces(engine::Store& store) const;
  /// The reverse of both. Throws UserError (usage) when the checkpoint has other experts, or they have done other steps
  /// than the recipe gives them.
  void resume(engine::Store& store, checkpoint::TrainingCheckpoint& saved);

 private:
  size_t place() const { return experts_.gated ? 0 : expert_; }
  double learning_rate(size_t expert, int64_t own_step) const;
  void check_steps(size_t expert, int64_t done, int64_t step) const;

  const job::Experts& experts_;
  const recipe::Recipe& recipe_;  // of the whole run
  const diffusion::Turns turns_;
  std::vector<std::vector<prepare::StageData>> data_;  // of each of experts_.places() and part
  std::vector<Objective> objectives_;                  // likewise
  std::vector<int64_t> updates_;                       // of each expert
  const recipe::Recipe* now_ = nullptr;                // of the part that runs
  size_t part_ = 0, expert_ = 0;
  int64_t own_step_ = 0;
};

}  // namespace tessera::train
