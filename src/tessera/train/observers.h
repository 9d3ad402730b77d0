#pragma once
// What is measured, told and written around each step. The loop calls all of them in the order of its list
// (trainer.cpp): before a step, and when every rank has finished it.
//
//   StepMeter meter(ranks, parts, experts, engine, objective, loader);
//   engine.run(pass.pass, objective, meter.report(pass));
//   for (const Observer& each : {memory_requests(parts, device::memory_requests), heartbeats(watch)}) each.after(end);
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/report/progress.h"
#include "tessera/train/expert_schedule.h"
#include "tessera/train/parts.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/slow_ranks.h"

namespace tessera::train {

/// Measures a step on this rank, reports it to all, and fills the step's metrics from what all have reported.
class StepMeter {
 public:
  /// All outlive it.
  StepMeter(Ranks& ranks, const Parts& parts, const ExpertSchedule& experts, engine::Engine& engine,
            const diffusion::FlowMatching& objective, Loader& loader);

  void before(const plan::Visit& visit);
  /// The samples that this rank was given for the step.
  void took(const diffusion::TrainingSamples& samples);
  /// Asked once a step whether a checkpoint is due; without it none is.
  std::function<bool()> due = {};
  /// This rank's report for the exchange at `norm` of the pass, which is about to run.
  engine::Report report(const ExpertPass& pass);
  void after(StepEnd& end);

 private:
  StepReport numbers(bool last);
  void add_by_set(report::StepMetrics& metrics);

  Ranks& ranks_;
  const Parts& parts_;
  const ExpertSchedule& experts_;
  engine::Engine& engine_;
  const diffusion::FlowMatching& objective_;
  Loader& loader_;
  // of the step that runs
  double began_ = 0, flops_ = 0;  // flops: that the model takes of this rank
  int64_t sample_bytes_ = 0;
  diffusion::LossBySet by_set_;  // this rank's
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
