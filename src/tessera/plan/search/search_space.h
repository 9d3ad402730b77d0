#pragma once
// What the planner chooses from: tiers, ways for a block to save less, pipelines. Values set by hand narrow it.
// Internal to the planner.
//
//   for (const Tiers& tiers : tier_choices(input))
//     for (const Saving& saving : savings(input)) ...
#include <string>
#include <vector>

#include "tessera/plan/search/planner_input.h"
#include "tessera/plan/simulate/cost.h"

namespace tessera::plan {

/// Which sites of a recomputed block keep their results, by the time that a byte of them saves.
///   dear    attention with many keys. Those of a text are few: its attention makes the bytes of self-attention in next
///           to none of its time
///   costly  and the feed-forward's second linear, which reads far more columns than it makes
///   all     and what is left
enum class Sites { all, costly, dear };
std::vector<std::string> kept_sites(const UnitSpec& unit, const Machine& machine, Sites which);

/// A way for a block to save less than everything.
struct Saving {
  Policy activations = Policy::keep;  ///< recompute on another tier: the block's input is there
  Policy results = Policy::keep;      ///< of the sites of a recomputed block
  Sites sites = Sites::all;
  bool host() const { return leaves_device(activations) || leaves_device(results); }
  bool recomputes() const { return activations.graph == Graph::recompute; }
};
/// What is lossy is tried where it was asked for by name, and there alone.
std::vector<Saving> savings(const PlannerInput& input);

struct Tiers {
  Tier parameters, gradients, states;
  bool operator==(const Tiers&) const = default;
};
inline constexpr Tiers kOnDevice = {Tier::device, Tier::device, Tier::device},
                       kOnHost = {Tier::host, Tier::host, Tier::host};
/// Where all units' buffers rest, the fastest first.
std::vector<Tiers> tier_choices(const PlannerInput& input);

/// The pipelines to choose from, what was set by hand first and alone. Throws UserError (usage) for several chunks of a
/// pipeline that has one.
std::vector<Pipeline> pipelines(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input,
                                const Machine& machine);

}  // namespace tessera::plan
