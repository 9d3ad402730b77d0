#include "tessera/plan/search/search_space.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

/// A site is dear that has at least this share of the FLOPs of the block's largest.
constexpr double kDear = 0.125;

constexpr Policy kKeep = Policy::keep, kAgain = Policy::recompute, kAway = Policy::offload,
                 kAgainAway = kRecomputeOffload.policy;
constexpr Saving kSavings[] = {{Policy::rebuild, kKeep},
                               {kAgain, kKeep},
                               {kAgain, kKeep, Sites::costly},
                               {kAgain, kKeep, Sites::dear},
                               {kAgain, kAway},
                               {kAgain, kAway, Sites::costly},
                               {kAgain, kAway, Sites::dear},
                               {kAgainAway, kKeep, Sites::costly},
                               {kAgainAway, kKeep, Sites::dear},
                               {kAgainAway, kAway},
                               {kAgainAway, kAway, Sites::costly},
                               {kAgainAway, kAway, Sites::dear},
                               {kAgain, kAgain},
                               {kAgainAway, kAgain},
                               {kAway, kAway}};

/// States leave first: they are the largest and are used once a step.
constexpr Tiers kTiers[] = {{Tier::device, Tier::device, Tier::device}, {Tier::device, Tier::device, Tier::host},
                            {Tier::device, Tier::host, Tier::host},     {Tier::host, Tier::host, Tier::host},
                            {Tier::device, Tier::device, Tier::nvme},   {Tier::device, Tier::host, Tier::nvme},
                            {Tier::host, Tier::host, Tier::nvme},       {Tier::nvme, Tier::host, Tier::nvme},
                            {Tier::nvme, Tier::nvme, Tier::nvme}};

/// Seconds of a unit's forward and backward: what stages are balanced by.
std::vector<double> unit_seconds(const ModelSpec& model, const Machine& machine) {
  Plan plan;
  plan.units.resize(model.units.size());
  const CostModel cost(model, plan, machine);
  std::vector<double> seconds;
  for (int u = 0; u < static_cast<int>(model.units.size()); ++u)
    seconds.push_back(cost.forward_seconds(u, false) + cost.backward_seconds(u));
  return seconds;
}

}  // namespace

std::vector<std::string> kept_sites(const UnitSpec& unit, const Machine& machine, Sites which) {
  const auto work = machine.work.find(unit.kind);
  const bool known = work != machine.work.end();  // where nothing is known every site is dear
  double most = 0;
  if (known)
    for (const auto& [site, flops] : work->second.attention) most = std::max(most, flops);
  const auto dear = [&](const std::string& site) {
    const auto found = work->second.attention.find(site);
    return found != work->second.attention.end() && found->second >= kDear * most;
  };
  std::vector<std::string> sites;
  for (const auto& [site, bytes] : unit.cost.results)
    if (which == Sites::all || !known || dear(site) || (which == Sites::costly && work->second.results.contains(site)))
      sites.push_back(site);
  return sites;
}

std::vector<Saving> savings(const PlannerInput& input) {
  if (!input.activations || !is_lossy(*input.activations)) return {std::begin(kSavings), std::end(kSavings)};
  return {{*input.activations, *input.activations}};
}

std::vector<Tiers> tier_choices(const PlannerInput& input) {
  std::vector<Tiers> result;
  for (Tiers tiers : kTiers) {
    const bool automatic = !input.parameters || !input.gradients || !input.states_tier;
    if (automatic && input.host_budget <= 0 && tiers != kOnDevice) continue;
    const bool disk = tiers.parameters == Tier::nvme || tiers.gradients == Tier::nvme || tiers.states == Tier::nvme;
    if (disk && !input.nvme) continue;  // by hand it is allowed, and the store asks for a folder
    tiers = {input.parameters.value_or(tiers.parameters), input.gradients.value_or(tiers.gradients),
             input.states_tier.value_or(tiers.states)};
    if (std::find(result.begin(), result.end(), tiers) == result.end()) result.push_back(tiers);
  }
  return result;
}

std::vector<Pipeline> pipelines(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input,
                                const Machine& machine) {
  const bool by_hand = input.pipeline.has_value(), chunks_alone = !by_hand && input.chunks.value_or(1) > 1;
  const PipelineSchedule first =
      chunks_alone ? PipelineSchedule::interleaved : input.pipeline.value_or(PipelineSchedule::one_f_one_b);
  if (first != PipelineSchedule::interleaved && input.chunks.value_or(1) > 1)
    throw UserError(
        Exit::usage, "plan.chunks",
        std::to_string(*input.chunks) + " chunks a rank with plan.pipeline = \"" + std::string(name(first)) + "\"",
        "only \"interleaved\" has several; leave plan.chunks on auto");
  const std::vector<double> seconds = unit_seconds(model, machine);
  const auto cut = [&](PipelineSchedule schedule, int chunks) {
    return Pipeline{schedule, chunks, balanced_stages(seconds, mesh[Axis::pp] * chunks)};
  };
  std::vector<Pipeline> result = {cut(first, first == PipelineSchedule::interleaved ? input.chunks.value_or(2) : 1)};
  if (by_hand || chunks_alone) return result;
  if (!input.chunks) result.push_back(cut(PipelineSchedule::zero_bubble, 1));
  if (mesh[Axis::pp] * 2 <= static_cast<int>(model.units.size()) && !input.chunks)
    result.push_back(cut(PipelineSchedule::interleaved, 2));
  return result;
}

}  // namespace tessera::plan
