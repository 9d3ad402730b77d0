#pragma once
// Chooses strategy, tiers, what happens to activations, and the prefetch depth under the budgets of device and host, by
// predicted memory and time. Values set by hand are respected.
//
// [Note: the search] Memory falls with the number of blocks that save less, so for each choice of tiers, strategy and
// way of saving less the fewest such blocks that fit are found by halving; the simulator says which of these plans is
// the fastest. Where it does not fit that all blocks make norms and sums again (rebuild, which costs little), those
// that need save no less do that instead of keeping all. What memory is left over is then spent on it: attention that
// need not run again, parameters that stay gathered, graphs that hold all again, another prefetch depth, each kept only
// where the simulator finds it faster; units that send activations away take turns with those that do not, so that
// copies have the time of both. Updates at other times or places take other memory: in backward where that may be, just
// in time and on the host where what they use may rest there, each is searched as a whole.
//
//   Choice choice = choose(spec, mesh, batch, {.budget = 24 << 30});
//   if (!choice.fits) ... choice.advice ...
#include <string>
#include <vector>

#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/search/planner_input.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {

/// Neither stem nor head: units that may save less for their backward.
bool may_save_less(const UnitSpec& unit);

struct Choice {
  bool fits = false;
  Plan plan;
  double seconds = 0;  ///< of a step of it, simulated
  MemoryCurve memory;  ///< of the rank with the highest peak
  std::vector<Candidate> candidates;
  std::string why;      ///< why the winner won
  std::string advice;   ///< what to change when nothing fits
  std::string warning;  ///< what is to be known of it, by who asked for it: a choice by hand costs time (both times)
};

Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Machine& machine = {});

/// Whether any of what the planner would choose is set by hand.
bool set_by_hand(const PlannerInput& input);

/// When the planner, free of what was set by hand, finds a plan that fits and is faster than `seconds`: a sentence with
/// both times, else empty. A search of its own.
std::string slower_by_hand(const ModelSpec& model, const Mesh& mesh, PlannerInput input, const Machine& machine,
                           double seconds);

}  // namespace tessera::plan
