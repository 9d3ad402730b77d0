#pragma once
// Makes the samples of a run, pass by pass between its steps.
//
//   Sampler sampler(folder, job, experts, engine, loader);
//   sampler.begin_part(parts.now(), *data.samples);
//   sampler.pass(parts.programs().sample, step);                // a finished sample is decoded and written by rank 0
//   sampler.put_back();                                         // before a step or a save uses the weights
#include <map>
#include <memory>
#include <vector>

#include "tessera/sample/validation.h"
#include "tessera/sample/with_lora.h"
#include "tessera/train/expert_schedule.h"
#include "tessera/train/run_folder.h"

namespace tessera::train {

class Sampler {
 public:
  /// All outlive it.
  Sampler(const RunFolder& folder, const job::Job& job, const ExpertSchedule& experts, engine::Engine& engine,
          Loader& loader);

  /// `part` and `data` stay as long as the part runs.
  void begin_part(const planning::PartPlan& part, const prepare::PreparedData& data);
  void pass(const plan::ProgramPtr& program, int64_t step);
  /// The trained weights are in their place again.
  void put_back() { weights_.reset(); }

 private:
  const RunFolder& folder_;
  const job::Job& job_;
  const ExpertSchedule& experts_;
  engine::Engine& engine_;
  Loader& loader_;
  const recipe::Recipe* recipe_ = nullptr;  // of the part that runs
  std::unique_ptr<sample::Validation> validation_;
  std::unique_ptr<sample::SamplerWeights> weights_;  // in place of the trained ones, from a sample's first pass on
};

/// The loss of clips that are not trained on, at quantiles of the timesteps that are, with noise of its own: the same
/// number on every layout, and no random number of the training is used.
class HeldOut {
 public:
  /// All outlive it.
  HeldOut(const RunFolder& folder, const job::Job& job, const ExpertSchedule& experts, engine::Engine& engine,
          Loader& loader);

  /// `part` and `data` stay as long as the part runs.
  void begin_part(const planning::PartPlan& part, const prepare::PreparedData* data);
  /// All passes of one measurement. All ranks together.
  void measure(const plan::ProgramPtr& program, int64_t step);
  /// Steps with their losses, those before the run was resumed too.
  const std::map<int64_t, double>& losses() const { return losses_; }
  void save(checkpoint::Manifest& manifest) const;
  void restore(const checkpoint::Manifest& manifest);

 private:
  struct Point;
  std::vector<Point> points() const;
  diffusion::NoiseSettings settings() const;
  std::vector<double> errors(const plan::ProgramPtr& program, const Point& point, int64_t step) const;

  const RunFolder& folder_;
  const job::Job& job_;
  const ExpertSchedule& experts_;
  engine::Engine& engine_;
  Loader& loader_;
  const planning::PartPlan* part_ = nullptr;
  const prepare::PreparedData* data_ = nullptr;
  std::map<int64_t, double> losses_;
};

/// Whether samples of the step that the run goes on from are missing, or their lines: making them failed, or was stopped.
/// All ranks together.
bool owes_samples(const RunFolder& folder, const plan::RunShape& run);

}  // namespace tessera::train
