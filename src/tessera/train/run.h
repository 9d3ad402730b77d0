#pragma once
// A training run on this rank: the setup before its first step, and the work between its steps (checkpoints, samples,
// logs). trainer.cpp has the loop of steps.
//
//   Run run(recipe, trace, place);
//   while (const std::optional<plan::Visit> visit = run.next()) ...
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/resume.h"
#include "tessera/checkpoint/training.h"
#include "tessera/comm/run_lock.h"
#include "tessera/engine/engine.h"
#include "tessera/job/job.h"
#include "tessera/job/lora_run.h"
#include "tessera/planning/priced.h"
#include "tessera/planning/run_plan.h"
#include "tessera/prepare/pace.h"
#include "tessera/prepare/stage_data.h"
#include "tessera/report/progress.h"
#include "tessera/report/run_log.h"
#include "tessera/sample/validation.h"
#include "tessera/sample/with_lora.h"
#include "tessera/train/divergence.h"
#include "tessera/train/expert_schedule.h"
#include "tessera/train/rank_watch.h"
#include "tessera/train/run_facts.h"
#include "tessera/train/slow_ranks.h"
#include "tessera/train/start_times.h"
#include "tessera/train/step_report.h"
#include "tessera/train/step_size.h"

namespace tessera::train {

/// Ends a rank because of what rank 0 found and has told.
struct ToldByRankZero {
  Exit code;
};

class Run {
 public:
  /// All ranks together. `trace`: file of every executed instruction; empty: none. `started`: of this process, in
  /// StartPhase::connect. Throws UserError for what the recipe, the data, the weights or the plan do not allow; where rank
  /// 0 has told it, ToldByRankZero.
  Run(recipe::Recipe recipe, std::string trace, const comm::Rendezvous& place, StartTimes started);

  /// What comes next; begins the parts of the run as they come. Nothing when the run is over, or stopped.
  std::optional<plan::Visit> next();

  // of a training step
  /// This rank's samples; those of the next step are begun.
  diffusion::TrainingSamples samples(const plan::Visit& visit);
  /// The pass with what the last steps decided of it: the loss scale, and the rate where updates run in the backward.
  const ExpertPass& armed(ExpertPass& pass);
  /// This rank's report for the exchange at `norm`.
  engine::Report report(const ExpertPass& pass);
  /// What becomes of the pass (decision.h), logged where it is skipped.
  Decision decide(const ExpertPass& pass, const engine::StepRun& step);
  /// Metrics, progress, slow ranks; ends the run where a signal asked for it.
  void after(const plan::Visit& visit, report::StepMetrics metrics);

  /// What is no training step.
  void serve(const plan::Visit& visit);
  /// Exports the model and writes the report; gives the exit code.
  int finish();
  void tell_results() const;
  /// Logs where this rank was when the run ended so.
  void tell(const UserError& error) const { watch_.tell(error); }
  /// What failed for good, if that is the device of this rank.
  std::optional<device::Failure> device_failure() { return watch_.device_failure(); }

  engine::Engine& engine() { return *engine_; }
  ExpertSchedule& experts() { return *experts_; }
  diffusion::FlowMatching& objective() { return *objective_; }

 private:
  void warn_without_gpu() const;
  void tell_memory_requests(int64_t step) const;
  void check_start();
  void choose_checkpoint(bool back);
  void phase(StartPhase phase);
  void plan_run();
  std::vector<std::string> searched_plans(const std::vector<int>& prompts);
  void start();
  void tell_start();
  void load();
  void claim_folder();
  void open_log();
  void tell_resume();
  void write_plan();
  bool own_checkpoint() const;
  void log_base(const engine::Roundings& rounded);
  void begin_part(size_t part);
  void take_plan();
  void watch_gpu();
  void tell_links();
  void compile_attention(const planning::PartPlan& part) const;
  StepReport numbers(bool last);
  double sample_flops(const planning::PartPlan& part, size_t bucket);
  void wait_for_slowest(const std::function<void(prepare::Pace&)>& act);
  void meet(prepare::Pace& pace);
  void sample(const plan::Visit& visit);
  bool owes_samples();
  Exit attempt(int64_t step, const std::string& what, const std::string& then, const std::function<void()>& act);
  Exit export_models();
  void write_report();
  void save(int64_t step);
  job::LoraFacts lora_facts(int64_t step, const job::Expert& expert) const;
  Exit export_saved_parts(int64_t step, const std::filesystem::path& checkpoint, const std::filesystem::path& folder);
  void export_save(int64_t step, const std::filesystem::path& checkpoint);
  void save_beside_experts(const std::filesystem::path& model) const;
  void prune();
  void count_skip(int64_t step);
  // run_health.cpp: what diverges, and what is worth going back to
  void weigh(const ExpertPass& pass, const Decision& decision);
  bool look_for_spikes(const ExpertPass& pass, const Decision& decision);
  struct Unproved;
  Unproved unproved(const std::filesystem::path& checkpoint, int64_t step) const;
  void save_unproved(const Unproved& next, checkpoint::Manifest& manifest) const;
  void restore_unproved(const checkpoint::Manifest& manifest);
  std::optional<std::filesystem::path> next_proved() const;
  void prove(int64_t step);
  bool agree_finite(prepare::Pace& pace, int64_t step, const std::string& broken);
  std::string command(const std::string& flags) const;
  std::string way_back(int64_t step, double lr) const;
  std::string newest_proved() const;
  std::string data_digest() const;
  void note_skips(int64_t step, const std::string& why, double lr);
  void note_divergence(int64_t step, const UserError& error, double lr);
  void note_divergence(int64_t step, const std::string& why, double lr);
  void require_other_course();
  Exit end_diverged();
  void look_for_slow_ranks(int64_t step);
  void give_shares(int64_t step, const std::vector<int64_t>& shares);

  /// Of the part that runs.
  const recipe::Recipe& recipe() const { return plans_[part_].part.recipe; }
  const planning::Planned& planned() const { return plans_[part_].planned; }

  recipe::Recipe recipe_;
  const comm::Rendezvous place_;
  const int rank_;
  const Mesh mesh_;
  StartTimes started_;
  RankWatch watch_;
  comm::Comm comm_;
  SlowRanks slow_;
  job::Job job_;
  std::filesystem::path out_, checkpoints_;
  std::optional<comm::RunLock> lock_;  // of rank 0, where no launcher has it
  std::string asked_;                  // run.resume, or what it was converted to
  checkpoint::Resume resume_;
  Values facts_;                                             // run_facts.h
  std::unique_ptr<checkpoint::TrainingCheckpoint> resumed_;  // resume_.from, until it is loaded
  std::vector<prepare::StageData> data_;                     // of each part of the run
  std::vector<planning::PartPlan> plans_;
  std::vector<planning::PricedStep> priced_;  // of each part: what rank 0 priced for this rank
  size_t part_ = 0;                           // the one that runs, in all three
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ExpertSchedule> experts_;
  std::optional<diffusion::FlowMatching> objective_;
  LossScale loss_scale_;
  StepSize step_size_;
  plan::Programs programs_;
  plan::MemoryCurve predicted_;  // of a training step
  std::optional<ModelFlops> model_flops_;
  std::optional<double> peak_flops_;  // of a rank
  std::optional<plan::RunWalk> walk_;
  std::unique_ptr<sample::Validation> validation_;
  std::unique_ptr<sample::SamplerWeights> sampled_;  // in place of the trained weights, from a sample's first pass on
  std::unique_ptr<report::RunLog> run_log_;          // of rank 0
  std::unique_ptr<report::Progress> progress_;
  int64_t memory_requests_ = 0;       // to the device's driver, before this step
  std::set<std::string> told_links_;  // communicators that were logged
  std::string trace_;

  // of the step that runs
  double began_ = 0;
  int64_t sample_bytes_ = 0;
  std::vector<StepReport> ranks_;
  std::string skipped_;
  bool overflowed_ = false, spiked_ = false;
  std::map<std::string, int64_t> sent_;
  double span_ = 0, span_began_ = 0;  // of these seconds: how long, and since when the next are counted
  double flops_ = 0;                  // that the model takes of this rank
  double work_ = 0;                   // seconds a sample took this rank in the step before
  std::vector<std::string> step_lines_;
  std::string plan_hash_;
  int64_t done_ = 0;               // steps before this process
  int64_t first_step_ = 1;         // of this process in this part
  int stopping_ = 0;               // the signal by which; 0: none
  bool save_asked_ = false;        // by a signal, behind the step that runs
  int64_t steps_ = 0, skips_ = 0;  // of this process
  int64_t skips_in_a_row_ = 0;     // up to this step, but for overflows of the loss scale
  Spikes spikes_;
  int64_t spikes_in_a_row_ = 0;
  /// A checkpoint that nothing proves yet, and the experts of which no step has begun from it.
  struct Unproved {
    std::filesystem::path checkpoint;
    std::set<size_t> experts;
  };
  std::vector<Unproved> unproved_;
  std::set<size_t> changed_;            // experts with updates since the last save
  std::set<size_t> skipping_;           // experts whose last step was skipped, but for overflows of the loss scale
  std::string unsaved_;                 // why the last save wrote no checkpoint; empty: it did
  double rate_ = 0;                     // of the last step
  bool skips_noted_ = false;            // in RUN/diverged.json, as long as no step is finite
  std::optional<Divergence> diverged_;  // of the start before; resume_.back: this one goes back because of it
  std::string other_course_;            // and what is different now
  std::unique_ptr<Loader> loader_;      // ends first: it uses the data
};

}  // namespace tessera::train
