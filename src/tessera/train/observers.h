#pragma once
// Which ranks are persistently slow, by the time they themselves need for a sample.
//
//   SlowRanks slow(mesh, {.factor = 1.3, .steps = 20});
//   slow.step({0.10, 0.21});                            // seconds of work for a sample, by rank, of one step
//   for (const SlowRanks::Slow& s : slow.found()) warn(s.text());
//   if (auto shares = slow.better_shares(plan)) ...     // less work for them
//
// All ranks wait for the slowest one, so step times do not show which rank is slow: the time of its own work does.
// Ranks are compared with those that do the same work, which are the ranks of their pipeline stage; every rank computes
// the same result from the same numbers.
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/plan/plan.h"
#include "tessera/report/progress.h"
#include "tessera/train/expert_schedule.h"
#include "tessera/train/parts.h"
#include "tessera/train/run_folder.h"

namespace tessera::train {

struct SlowRankOptions {
  double factor = 1.3;  ///< times the others' median from which a rank is slow; 0: none ever is
  int64_t steps = 20;   ///< over which medians are taken
};

class SlowRanks {
 public:
  SlowRanks(const Mesh& mesh, SlowRankOptions options);

  /// `seconds[r]`: rank r's work for one sample in this step; 0 when it had none.
  void step(const std::vector<double>& seconds);

  struct Slow {
    int rank = 0;
    double factor = 1;               ///< times the others' median
    double seconds = 0, others = 0;  ///< for a sample
    int64_t steps = 0;
    std::string text() const;
  };
  /// Ranks that have become slow since the last call; one that recovers and becomes slow again comes again. Each time it
  /// comes, it counts as recovered only behind twice as many steps: one that keeps changing is named a few times in all.
  std::vector<Slow> found();

  /// Samples for each dp rank under which a step is at least a twentieth shorter than with those that the plan has;
  /// nothing when there are none such, or too few steps were seen. Forgets what it saw when it proposes.
  std::optional<std::vector<int64_t>> better_shares(const plan::Plan& plan);

 private:
  bool measured() const { return static_cast<int64_t>(window_.size()) >= options_.steps; }
  double median_factor(int rank) const;
  double recovered() const { return 1 + (options_.factor - 1) / 2; }

  const Mesh mesh_;
  const SlowRankOptions options_;
  struct Row {
    std::vector<double> seconds, factors;  // by rank; factor 0: it had no sample
  };
  std::deque<Row> window_;
  struct State {
    bool slow = false;
    int64_t named = 0, calm = 0;  // how often; steps since it recovered, while it counts as slow
  };
  std::map<int, State> states_;
  int64_t unseen_ = 0;  // steps since the last found()
};

// What is measured, told and written around each step. The loop calls all of them in the order of its list
// (trainer.cpp): before a step, and when every rank has finished it.
//
//   StepMeter meter(ranks, parts, experts, engine, loader);
//   engine.run(pass.pass, objective, meter.report(pass));
//   for (const Observer& each : {memory_requests(parts, device::memory_requests), heartbeats(watch)}) each.after(end);

/// Measures a step on this rank, reports it to all, and fills the step's metrics from what all have reported.
class StepMeter {
 public:
  /// All outlive it.
  StepMeter(Ranks& ranks, const Parts& parts, const ExpertSchedule& experts, engine::Engine& engine, Loader& loader);

  void before(const plan::Visit& visit);
  /// The samples that this rank was given for the step.
  void took(const diffusion::TrainingSamples& samples);
  /// Asked once a step whether a checkpoint is due; without it none is.
  std::function<bool()> due = {};
  /// This rank's report for the exchange at `norm` of the pass, which is about to run; `side`: of those side by side.
  engine::Report report(const ExpertPass& pass, const diffusion::FlowMatching& objective, size_t side = 0);
  void after(StepEnd& end);

 private:
  StepReport numbers(bool last, const diffusion::FlowMatching& objective, engine::StepNumbers& numbers);
  void add_by_set(report::StepMetrics& metrics);
  void add_fp8(report::StepMetrics& metrics);

  Ranks& ranks_;
  const Parts& parts_;
  const ExpertSchedule& experts_;
  engine::Engine& engine_;
  Loader& loader_;
  // of the step that runs
  double began_ = 0, flops_ = 0;  // flops: that the model takes of this rank
  int64_t sample_bytes_ = 0;
  diffusion::LossBySet by_set_;  // this rank's
  std::vector<double> fp8_;      // likewise: ops::kFp8Counts by unit; empty: the step counts none
  std::map<std::string, int64_t> sent_;
  // of the step before
  double span_ = 0, span_began_ = 0;  // seconds with what followed it, and since when the next are counted
  double work_ = 0;                   // seconds a sample took this rank
};

/// Keeps the list of instructions that the first two steps of a part have executed.
class Instructions {
 public:
  Instructions(const Ranks& ranks, const Parts& parts, engine::StepTimes& times)
      : ranks_(ranks), parts_(parts), times_(times) {}
  void before(const plan::Visit& visit) { times_.keep_lines(kept(visit.step)); }
  void after(StepEnd& end);
  /// Deferred updates of the step have run.
  void updated(int64_t step);
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  bool kept(int64_t step) const { return step <= parts_.first_step() + 1; }

  const Ranks& ranks_;
  const Parts& parts_;
  engine::StepTimes& times_;
  std::vector<std::string> lines_;
};

/// Says where the device's driver was asked for memory behind the first two steps of a part. `requests`: so far, as
/// device::memory_requests.
Observer memory_requests(const Parts& parts, std::function<int64_t()> requests);

/// Tells the launcher what this rank does around its steps.
Observer heartbeats(RankWatch& watch);

/// Writes metrics.jsonl and the line of progress. Of rank 0.
Observer history(const RunFolder& folder, const Parts& parts, report::Progress& progress);

/// Names ranks that have become slow. `plan`: whose samples slow ranks may leave to others; null: they keep them. `give`
/// does it. Every rank has the same numbers and comes to the same answer.
Observer slow_ranks(const RunFolder& folder, const Mesh& mesh, const recipe::Recipe::Fault& settings,
                    std::function<const plan::Plan*()> plan,
                    std::function<void(int64_t step, const std::vector<int64_t>& shares)> give);

}  // namespace tessera::train
