#pragma once
// The planner's choices: placement, memory savings of blocks, pipelines. Settings of the user narrow them. Internal to
// the planner.
//
//   for (const Tiers& tiers : tier_choices(input))
//     for (const Saving& saving : savings(input)) ...
#include <string>
#include <vector>

#include "tessera/plan/search/candidate.h"
#include "tessera/plan/simulate/cost.h"

namespace tessera::plan {

/// The sites of a recomputed block whose results are kept, by time saved for each byte.
///   long_attention          attention with many keys. Text attention has few keys: its result takes as many bytes as
///                           that of self-attention but hardly any time to recompute
///   long_attention_and_ffn  also the feed-forward's second linear, whose input is far wider than its output
///   all                     also the rest
enum class Sites { all, long_attention_and_ffn, long_attention };
std::vector<std::string> kept_sites(const UnitSpec& unit, const Machine& machine, Sites which);

/// How a block saves activation memory.
struct Saving {
  Policy activations = Policy::keep;  ///< recompute on another tier: the block's input is offloaded
  Policy results = Policy::keep;      ///< of the sites of a recomputed block
  Sites sites = Sites::all;
  bool host() const { return leaves_device(activations) || leaves_device(results); }
  bool recomputes() const { return activations.graph == Graph::recompute; }
};
/// Lossy policies are tried only if the user asks for them.
std::vector<Saving> savings(const PlannerInput& input);

struct Tiers {
  Tier parameters, gradients, states;
  bool operator==(const Tiers&) const = default;
};
inline constexpr Tiers kOnDevice = {Tier::device, Tier::device, Tier::device},
                       kOnHost = {Tier::host, Tier::host, Tier::host};
/// Placements of all units' buffers, fastest first.
std::vector<Tiers> tier_choices(const PlannerInput& input);

/// Whether updates and their buffers may be placed on the host.
bool may_update_on_host(const PlannerInput& input);

/// The pipelines to choose from; only that of the user, if set. Throws UserError (usage) for several chunks with a
/// schedule that has one.
std::vector<Pipeline> pipelines(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input,
                                const Machine& machine);

}  // namespace tessera::plan
