#pragma once
// Chooses keep or recompute for each unit, the strategy and the prefetch depth under a memory budget, by predicted
// memory and time. Values set by hand are respected.
//
//   Choice choice = choose(spec, mesh, batch, {.budget = 24 << 30});
//   if (!choice.fits) ... choice.advice ...
#include <optional>
#include <string>

#include "tessera/plan/memory.h"
#include "tessera/plan/predict.h"

namespace tessera::plan {

struct PlannerInput {
  int64_t global_batch = 1;
  int64_t micro_batch = 1;
  int64_t budget = 0;                  ///< device bytes a rank; 0: unlimited
  std::optional<int> prefetch;         ///< set by hand
  std::optional<int> recompute_units;  ///< set by hand: how many blocks recompute (from the first on)
  std::optional<Strategy> strategy;    ///< set by hand
  StateFormat states = {};
  ParamType param_dtype = ParamType::fp32;
};

struct Candidate {
  Plan plan;
  bool fits = false;
  int64_t peak = 0;
  double seconds = 0;  ///< of a step, simulated
  std::string why;
};

struct Choice {
  bool fits = false;
  Plan plan;
  double seconds = 0;  ///< of a step of it, simulated
  MemoryCurve memory;  ///< of the rank with the highest peak
  std::vector<Candidate> candidates;
  std::string why;      ///< why the winner won
  std::string advice;   ///< what to change when nothing fits
  std::string warning;  ///< a choice by hand costs time: both times
};

/// `extra_arena`: slots of the run's other schedules (samples), because one arena serves all.
Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Machine& machine = {});

/// When the planner, free of what was set by hand, finds a plan that fits and is faster than `seconds`: a sentence with
/// both times, else empty.
std::string slower_by_hand(const ModelSpec& model, const Mesh& mesh, PlannerInput input, const Machine& machine,
                           double seconds);

}  // namespace tessera::plan
