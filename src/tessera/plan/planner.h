#pragma once
// Chooses keep or recompute for each unit, the strategy and the prefetch depth under a memory budget, by predicted
// memory and time. Values set by hand are respected.
//
//   Choice choice = choose(spec, mesh, batch, {.budget = 24 << 30});
//   if (!choice.fits) ... choice.advice ...
#include <optional>
#include <string>

#include "tessera/plan/memory.h"

namespace tessera::plan {

struct PlannerInput {
  int64_t global_batch = 1;
  int64_t micro_batch = 1;
  int64_t budget = 0;                  ///< device bytes a rank; 0: unlimited
  std::optional<int> prefetch;         ///< set by hand
  std::optional<int> recompute_units;  ///< set by hand: how many blocks recompute (from the first on)
  std::optional<Strategy> strategy;    ///< set by hand
};

/// Rates of the cost model. The defaults are stand-ins until a profile is measured; only ratios matter to the choice.
struct Rates {
  double flops = 50e9;  ///< FLOP/s a rank
  double link = 1.5e9;  ///< bytes/s of a collective
};

struct Candidate {
  Plan plan;
  bool fits = false;
  int64_t peak = 0;
  double seconds = 0;  ///< by the cost model: compute plus exposed communication
  std::string why;
};

struct Choice {
  bool fits = false;
  Plan plan;
  MemoryCurve memory;  ///< of the rank with the highest peak
  std::vector<Candidate> candidates;
  std::string why;     ///< why the winner won
  std::string advice;  ///< what to change when nothing fits
};

/// `extra_arena`: slots of the run's other schedules (samples), because one arena serves all.
Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Rates& rates = {});

}  // namespace tessera::plan
