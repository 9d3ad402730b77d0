#pragma once
// Chooses strategy, placement, activation policies and prefetch depth within the device and host budgets, by predicted
// memory and time. Settings of the user are kept.
//
// [Note: the search] Peak memory falls with the number of blocks that recompute or offload. So for each choice of
// placement, strategy and activation policy, bisection finds the fewest such blocks that fit, and the simulator ranks
// these plans. If selective recompute of all blocks does not fit alone, the blocks without a stronger policy use it
// instead of keeping everything. The memory left by the best plan is then spent on: attention results that need no
// recompute, parameters that stay gathered (reshard_after_forward = false), full graphs, another prefetch depth; each
// is kept only if the simulator finds it faster. Units that offload activations alternate with units that do not, so
// that copies overlap the compute of both. Update times and places need other memory: updates in the backward (if
// allowed), just in time and on the host (if their buffers may be offloaded) are each searched in full. Of the units whose
// states the host has it may update a part beside the device: the part is tried in eighths. Each schedule of a pipeline is
// searched in full as well. At last the best plan trades memory of the device for memory of the host and back (mix.h), and
// update times are tried on it again. Whether a plan fits is known when it
// is compiled for its memory; only those that are considered are compiled whole and simulated.
//
//   Choice choice = choose(spec, mesh, batch, {.budget = 24 << 30});
//   if (!choice.fits) ... choice.advice ...
#include <string>
#include <vector>

#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/simulate/predict.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::plan {

struct Choice {
  bool fits = false;
  Plan plan;
  double seconds = 0;  ///< simulated, of one step
  double fastest = 0;  ///< of the fastest plan that fits, which takes the same time: [Note: the same time]
  MemoryCurve memory;  ///< of the rank with the highest peak
  std::vector<Candidate> candidates;
  int evaluated = 0;    ///< plans compiled, of which those that fit were simulated
  std::string why;      ///< reason for the choice
  std::string advice;   ///< what to change if nothing fits
  std::string warning;  ///< a setting of the user makes the step slower, with both times; filled by the caller
};

Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Machine& machine = {});

/// Whether device and host together have no room for what a rank keeps between steps, sharded as far as it can be: parameters,
/// states and, where updates wait for the norm, gradients. Then no plan fits. The units need not be measured.
bool lasting_bytes_exceed_memory(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input);

/// Whether the user set anything that the planner would choose.
bool set_by_hand(const PlannerInput& input);

/// Runs another search without the user's settings. If it finds a plan that fits and is faster than `seconds`: a
/// sentence with both times, else empty.
std::string slower_by_hand(const ModelSpec& model, const Mesh& mesh, PlannerInput input, const Machine& machine,
                           double seconds);

// The settings of the user before a search: what they say of each other. Internal to the planner.
//
//   const PlannerInput input = placed(reconciled(by_hand, blocks));

/// Sets recompute_units from recompute_every, for a model with so many blocks: block 0 and each at a multiple of it
/// recompute. Throws UserError (usage) where recompute and activations disagree.
PlannerInput reconciled(PlannerInput input, int blocks);

/// Updates on the host place their buffers there, unless these are set too. Throws UserError (usage) where they are set
/// to another place.
PlannerInput placed(PlannerInput input);

}  // namespace tessera::plan
