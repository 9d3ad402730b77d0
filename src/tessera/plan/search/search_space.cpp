#include "tessera/plan/search/search_space.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

/// A site whose attention has at least this share of the FLOPs of the block's largest counts as long.
constexpr double kLongAttention = 0.125;

constexpr Policy kKeep = Policy::keep, kRecompute = Policy::recompute, kOffload = Policy::offload,
                 kRecomputeOffloaded = kRecomputeOffload.policy;
constexpr Saving kSavings[] = {{Policy::rebuild, kKeep},
                               {kRecompute, kKeep},
                               {kRecompute, kKeep, Sites::long_attention_and_ffn},
                               {kRecompute, kKeep, Sites::long_attention},
                               {kRecompute, kOffload},
                               {kRecompute, kOffload, Sites::long_attention_and_ffn},
                               {kRecompute, kOffload, Sites::long_attention},
                               {kRecomputeOffloaded, kKeep, Sites::long_attention_and_ffn},
                               {kRecomputeOffloaded, kKeep, Sites::long_attention},
                               {kRecomputeOffloaded, kOffload},
                               {kRecomputeOffloaded, kOffload, Sites::long_attention_and_ffn},
                               {kRecomputeOffloaded, kOffload, Sites::long_attention},
                               {kRecompute, kRecompute},
                               {kRecomputeOffloaded, kRecompute},
                               {kOffload, kOffload}};

/// States are offloaded first: they are the largest buffers and used once a step.
constexpr Tiers kTiers[] = {{Tier::device, Tier::device, Tier::device}, {Tier::device, Tier::device, Tier::host},
                            {Tier::device, Tier::host, Tier::host},     {Tier::host, Tier::host, Tier::host},
                            {Tier::device, Tier::device, Tier::nvme},   {Tier::device, Tier::host, Tier::nvme},
                            {Tier::host, Tier::host, Tier::nvme},       {Tier::nvme, Tier::host, Tier::nvme},
                            {Tier::nvme, Tier::nvme, Tier::nvme}};

/// Seconds of a unit's forward and backward, by which stages are balanced.
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
  const bool known = work != machine.work.end();  // without work counts every site qualifies
  double most = 0;
  if (known)
    for (const auto& [site, flops] : work->second.attention) most = std::max(most, flops);
  const auto long_attention = [&](const std::string& site) {
    const auto found = work->second.attention.find(site);
    return found != work->second.attention.end() && found->second >= kLongAttention * most;
  };
  std::vector<std::string> sites;
  for (const auto& [site, bytes] : unit.cost.results)
    if (which == Sites::all || !known || long_attention(site) ||
        (which == Sites::long_attention_and_ffn && work->second.results.contains(site)))
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
    if (disk && !input.nvme) continue;  // users may still set it; the store then asks for a folder
    tiers = {input.parameters.value_or(tiers.parameters), input.gradients.value_or(tiers.gradients),
             input.states_tier.value_or(tiers.states)};
    if (std::find(result.begin(), result.end(), tiers) == result.end()) result.push_back(tiers);
  }
  return result;
}

bool may_update_on_host(const PlannerInput& input) {
  const bool all_by_hand = input.parameters && input.gradients && input.states_tier;
  return !input.update_on && (input.host_budget > 0 || all_by_hand) &&
         input.parameters.value_or(Tier::host) == Tier::host && input.gradients.value_or(Tier::host) == Tier::host &&
         input.states_tier.value_or(Tier::host) == Tier::host;
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
        "only \"interleaved\" has several chunks; leave plan.chunks on auto");
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
