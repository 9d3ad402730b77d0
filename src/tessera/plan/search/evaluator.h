#pragma once
// Memory and time of one plan, and the nearest plans that hold the budgets. Internal to the planner.
//
//   Evaluator evaluator(model, input, machine, by_hand, blocks);
//   Pool pool(evaluator);
//   pool.consider(evaluator.evaluate(plan));                   // the best is in pool.best
#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/simulate/predict.h"
#include "tessera/plan/unit_keys.h"

namespace tessera::plan {

struct Evaluated {
  Candidate candidate;
  MemoryCurve memory;
  int64_t disk = 0;  ///< bytes there, of the rank with the most
  struct Steps;
  std::shared_ptr<const Steps> steps;  ///< of a plan that was measured and not simulated yet
};

/// Faster; at equal time, the one with less host memory.
bool is_better(const Candidate& a, const Candidate& b);

/// The user's setting of the placement of a unit's parameters, gradients or states.
std::optional<Tier> Choices::*user_tier_of(Tier UnitPlan::*part);

class Evaluator {
 public:
  /// Keeps references to model, input, machine and `by_hand`, which every plan takes. `blocks`: the units that may
  /// recompute or offload activations.
  Evaluator(const ModelSpec& model, const PlannerInput& input, const Machine& machine, const UnitsByHand& by_hand,
            std::vector<size_t> blocks)
      : model(model), input(input), machine(machine), by_hand(by_hand), blocks(std::move(blocks)) {}

  /// The steps of the plan's experts: one where all have the same.
  std::vector<Plan> steps_of(const Plan& plan) const;
  /// Seconds of a step and of its compute, memory aside: the mean of all experts'.
  StepSeconds seconds(Plan plan) const;
  /// Memory of the plan, of the expert that needs most. [Note: many micro-batches] Of more than kMicros only so many are
  /// compiled and simulated, as the others repeat the second of them; `whole`: all are, with the instruction at the peak as
  /// the run has it. Passes of a search ask for the same plans: what was found of one that does not fit, or that was timed,
  /// is not found again.
  Evaluated measured(Plan plan, bool whole = false) const;
  /// With the time of a plan that fits: the mean of all experts'. Unchanged if it was there already.
  Evaluated timed(Evaluated e) const;
  /// Both.
  Evaluated evaluate(Plan plan, bool whole = false) const { return timed(measured(std::move(plan), whole)); }
  /// What compute waits for in a step of the plan, with the schedule of as many micro-batches as evaluate has.
  Prediction predicted(const Plan& plan) const;
  /// If only host memory is too small: the same plan with enough units' buffers moved back to the device.
  Evaluated within_host_budget(Evaluated e) const;
  Evaluated within_host_budget(Plan plan) const { return within_host_budget(measured(std::move(plan))); }
  /// The same plan with the smallest number of activations or of states on disk that fits the host budget, whichever is
  /// faster. Empty if neither fits.
  std::optional<Evaluated> spill_to_disk(const Candidate& from) const;

  /// `measured_with(n)` of the smallest n that fits, by bisection; `found` is the result for `count`, which fits.
  template <typename Measure>
  Evaluated fewest(int count, Evaluated found, const Measure& measured_with) const {
    for (int over = 0; count - over > 1;) {
      const int middle = (count + over) / 2;
      Evaluated tried = measured_with(middle);
      (tried.candidate.fits ? count : over) = middle;
      if (tried.candidate.fits) found = std::move(tried);
    }
    return found;
  }
  /// The same in fewer steps, where bytes are nearly proportional to n: `none` is the result for 0, which does not fit.
  template <typename Measure>
  Evaluated fewest_of_equal(int count, Evaluated found, const Candidate& none, const Measure& measured_with) const {
    Bound fits = bound(count, found.candidate), over = bound(0, none);
    for (int round = 0; fits.n - over.n > 1; ++round) {
      const int n = between(over, fits, round);
      Evaluated tried = measured_with(n);
      (tried.candidate.fits ? fits : over) = bound(n, tried.candidate);
      if (tried.candidate.fits) found = std::move(tried);
    }
    return found;
  }

  int evaluated() const { return evaluated_; }  ///< plans measured, each once

  const ModelSpec& model;
  const PlannerInput& input;
  const Machine& machine;
  const UnitsByHand& by_hand;
  const std::vector<size_t> blocks;

 private:
  /// A number of units, and by how many bytes the plan that changes so many exceeds the budgets.
  struct Bound {
    int n;
    int64_t over_device, over_host;
  };
  Bound bound(int n, const Candidate& candidate) const;
  /// The number strictly between these from which on the budgets are met, if bytes are proportional to it; in every third
  /// round the middle.
  static int between(const Bound& over, const Bound& fits, int round);
  const Evaluated* known(const Plan& plan) const;
  void remember(const Evaluated& e) const;
  mutable int evaluated_ = 0;
  mutable std::unordered_multimap<size_t, Evaluated> known_;
  MemoryCurve whole_run(const Plan& plan, const RankGroup& group, const ArenaBytes& least) const;
  Evaluated unload_host(const Candidate& from) const;
  template <typename Change>
  std::optional<Evaluated> least(const Candidate& from, size_t limit, const Change& change) const;
};

/// The plans that a search has considered.
class Pool {
 public:
  explicit Pool(const Evaluator& evaluator) : evaluator_(evaluator) {}

  /// Keeps the plan (on disk, if only that fits the host) if it is better than the best; whether it was. Simulates it if
  /// that was not done.
  bool consider(Evaluated e);

  /// The largest n up to `limit` for which `change(plan, n)` of the best plan fits, by bisection, is considered; n is a
  /// number of units.
  template <typename Change>
  void most(int limit, const Change& change) {
    const Plan from = best->candidate.plan;
    std::optional<Evaluated> found;
    int fits = 0, over = limit + 1;
    for (int tried = limit; over - fits > 1; tried = (fits + over) / 2) {  // all of them first
      Plan plan = from;
      change(plan, tried);
      Evaluated e = evaluator_.measured(std::move(plan));
      if (e.candidate.fits)
        found = std::move(e), fits = tried;
      else
        over = tried;
    }
    if (found) consider(std::move(*found));
  }

  std::optional<Evaluated> best;      ///< the fastest that fits
  std::optional<Evaluated> smallest;  ///< the one that exceeds the budgets least
  std::vector<Candidate> candidates;
  std::vector<int64_t> disk;  ///< bytes of each candidate there

 private:
  const Evaluator& evaluator_;
};

}  // namespace tessera::plan
