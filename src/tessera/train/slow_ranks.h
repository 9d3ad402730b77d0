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
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/plan/plan.h"

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

}  // namespace tessera::train
