#pragma once
// The parts of a run, one for each stage, and what holds in the one that runs: its recipe, plan, programs and visits.
//
//   Parts parts(plans, priced, flops, rank);
//   parts.go_on(done), parts.begin(parts.index());
//   while (const std::optional<plan::Visit> visit = parts.walk().next()) ...            // then parts.more()
#include <optional>
#include <string>
#include <vector>

#include "tessera/plan/compile/run_walk.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/run_plan.h"

namespace tessera::train {

class Parts {
 public:
  /// Of each part, what rank 0 `priced` for this rank, and the FLOPs that the model takes of it, `flops`, for a sample of
  /// each bucket.
  Parts(std::vector<planning::PartPlan> plans, std::vector<planning::PricedStep> priced,
        std::vector<std::vector<double>> flops, int rank);

  const std::vector<planning::PartPlan>& all() const { return plans_; }
  size_t index() const { return part_; }  ///< of the part that runs
  bool more() const { return part_ + 1 < plans_.size(); }
  const planning::PartPlan& now() const { return plans_[part_]; }
  const recipe::Recipe& recipe() const { return now().part.recipe; }
  const planning::Planned& planned() const { return now().planned; }
  double sample_flops(size_t bucket) const { return flops_[part_].at(bucket); }

  /// Of a run that has done so many steps; else it begins with the first part.
  void go_on(int64_t done);
  int64_t done() const { return done_; }  ///< steps before this process

  /// Makes the programs of a part. Throws InternalError where they are not what was priced.
  void begin(size_t part);
  const plan::Programs& programs() const { return programs_; }
  const plan::MemoryCurve& predicted() const { return predicted_; }  ///< of a training step
  const std::string& plan_hash() const { return plan_hash_; }        ///< which metrics and checkpoints repeat
  int64_t first_step() const { return first_step_; }                 ///< of this process in this part
  plan::RunWalk& walk() { return *walk_; }

  /// What the part would run with other samples by dp rank, and has from then on.
  struct Shared {
    plan::Programs programs;
    plan::MemoryCurve predicted;
  };
  Shared with_shares(const std::vector<int64_t>& shares) const;
  void take(Shared shared);

 private:
  const std::vector<planning::PartPlan> plans_;
  const std::vector<planning::PricedStep> priced_;
  const std::vector<std::vector<double>> flops_;
  const int rank_;
  size_t part_ = 0;
  int64_t done_ = 0, first_step_ = 1;
  plan::Programs programs_;
  plan::MemoryCurve predicted_;
  std::string plan_hash_;
  std::optional<plan::RunWalk> walk_;
};

}  // namespace tessera::train
