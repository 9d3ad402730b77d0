#include "tessera/plan/plan.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "tessera/base/check.h"
#include "tessera/base/mesh.h"
#include "tessera/base/names.h"

namespace tessera::plan {

namespace {

constexpr std::array<std::string_view, 3> kUpdates = {"end", "just_in_time", "in_backward"};
constexpr std::array<std::string_view, kStrategies> kStrategyNames = {"full_shard", "shard_grad_op", "shard_states",
                                                                      "no_shard", "two_level"};

/// Lower case without separators, so that ZeRO-3, zero_3 and ZERO3 are the same name.
std::string folded(std::string_view text) {
  std::string result;
  for (char c : text)
    if (c != '-' && c != '_' && c != ' ') result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

}  // namespace

std::string_view name(Update update) { return kUpdates[static_cast<size_t>(update)]; }
std::string_view name(Strategy strategy) { return kStrategyNames[static_cast<size_t>(strategy)]; }

Update update_of(std::string_view text, std::string_view where) { return named<Update>(kUpdates, text, where); }

Strategy strategy_of(std::string_view text, std::string_view where) {
  const std::string word = folded(text);
  if (word == "fullshard" || word == "zero3") return Strategy::full_shard;
  if (word == "shardgradop" || word == "zero2") return Strategy::shard_grad_op;
  if (word == "shardstates" || word == "zero1") return Strategy::shard_states;
  if (word == "noshard" || word == "zero0" || word == "ddp") return Strategy::no_shard;
  if (word == "twolevel" || word == "hybridshardstates" || word == "hpz" || word == "zerohpz")
    return Strategy::two_level;
  if (word == "hybridshard" || word == "hybridshardzero2" || word == "mics")
    throw UserError(Exit::usage, where, "'" + std::string(text) + "' is set by the mesh, not by the strategy",
                    std::string("keep ") + (word == "hybridshardzero2" ? "shard_grad_op" : "full_shard") +
                        " and set dp_replicate to the number of replicas, or choose two_level, which "
                        "shards the optimiser states over the replicas too");
  std::vector<std::string> known(kStrategyNames.begin(), kStrategyNames.end());
  known.insert(known.end(), {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "ZeRO-3", "ZeRO-2", "ZeRO-1"});
  unknown_name(where, text, known);
}

const Policy& UnitPlan::policy(std::string_view site) const {
  for (const auto& [name, policy] : sites)  // a few; a search asks millions of times
    if (name == site) return policy;
  return activations;
}

bool UnitPlan::offloads() const {
  return leaves_device(activations) ||
         std::any_of(sites.begin(), sites.end(), [](const auto& site) { return leaves_device(site.second); });
}

bool UnitPlan::compresses() const {
  return is_lossy(activations) ||
         std::any_of(sites.begin(), sites.end(), [](const auto& site) { return is_lossy(site.second); });
}

bool UnitPlan::replays() const {
  return activations == Policy::recompute && std::any_of(sites.begin(), sites.end(), [](const auto& site) {
           return site.first != kBlockInput && site.second != Policy::recompute;
         });
}

int Plan::shards(int unit) const {
  const bool whole = unit < static_cast<int>(units.size()) && units[unit].strategy == Strategy::no_shard;
  return whole ? 1 : mesh.shard_size();
}

UnitLayout Plan::layout(const UnitSpec& spec, int unit) const {
  const bool whole = unit < static_cast<int>(units.size()) && units[unit].strategy == Strategy::no_shard;
  const bool two_level = unit < static_cast<int>(units.size()) && units[unit].strategy == Strategy::two_level;
  return unit_layout(spec, shards(unit), mesh[Axis::tp], whole, size_of(slots()),
                     two_level ? mesh[Axis::dp_replicate] : 1, gather_fp8 && !whole);
}

int Plan::shard_rank(const Buffer& buffer, int rank) const {
  if (buffer.shards == 1) return 0;
  const int tp = mesh[Axis::tp];
  return buffer.over_tp ? mesh.shard_rank(rank) * tp + mesh.coordinate(rank, Axis::tp) : mesh.shard_rank(rank);
}

std::vector<Held> Plan::held(const UnitLayout& layout, int rank) const {
  std::vector<Held> held;
  for (const Buffer& buffer : layout.buffers) {
    Held& mine = held.emplace_back(shard_rank(buffer, rank));
    if (buffer.partitions == 1) continue;
    mine.partition = RankGrid(mesh, rank, outer_axes(buffer)).below(rank);
  }
  return held;
}

std::vector<Axis> Plan::axes(const Buffer& buffer) const {
  std::vector<Axis> axes = buffer.shards > 1 ? kShardAxes : kWholeAxes;
  if (buffer.over_tp) axes.push_back(Axis::tp);
  return axes;
}

std::vector<Axis> Plan::outer_axes(const Buffer& buffer) const {
  return buffer.shards > 1 ? std::vector<Axis>{Axis::dp_replicate} : axes(buffer);
}

int64_t Plan::accumulation() const {
  const int64_t most = shares.empty() ? div_up(global_batch, mesh.dp_size()) : *std::ranges::max_element(shares);
  return std::max<int64_t>(1, div_up(most, micro_batch));
}

bool Plan::transient_gradient(const UnitLayout& layout, int unit) const {
  if (update != Update::in_backward || layout.grad_total == 0) return false;
  const UnitPlan& plan = units[static_cast<size_t>(unit)];
  if (plan.gradients != Tier::device) return false;
  return accumulation() == 1 || (layout.sharded && plan.reduces_once());
}

bool same_buffers(const UnitPlan& a, const UnitPlan& b) {
  const auto own = [](Strategy s) { return s == Strategy::no_shard || s == Strategy::two_level; };
  const bool same_layout = a.strategy == b.strategy || (!own(a.strategy) && !own(b.strategy));
  return same_layout && a.parameters == b.parameters && a.gradients == b.gradients && a.states == b.states &&
         a.update_on == b.update_on;
}

Plan Plan::as_of(int expert) const {
  Plan plan = *this;
  plan.of_expert.clear();
  if (const auto own = of_expert.find(expert); own != of_expert.end()) plan.units = own->second;
  return plan;
}

void Plan::check_experts(std::string_view where, const std::vector<std::string>& unit_names) const {
  for (const auto& [expert, own] : of_expert)
    for (size_t u = 0; u < units.size(); ++u) {
      const UnitPlan &a = units[u], &b = own[u];
      const std::string of = u < unit_names.size() ? unit_names[u] + ": " : "";
      if (!same_buffers(a, b))
        throw UserError(Exit::usage, std::string(where),
                        of + "expert " + std::to_string(expert) + " has " + std::string(name(b.strategy)) +
                            ", the first expert " + std::string(name(a.strategy)) +
                            (a.strategy == b.strategy ? " with buffers elsewhere" : "") +
                            ": all experts use the same buffers",
                        "of one expert set strategy to full_shard, shard_grad_op or shard_states, activations, sites, "
                        "offload_to or reduce; the rest for all experts");
      if (update == Update::in_backward && a.reduces_once() != b.reduces_once())
        throw UserError(Exit::usage, std::string(where),
                        of +
                            "with updates in the backward a gradient that is reduced once a step has no buffer of its "
                            "own, and experts " +
                            std::to_string(expert) + " and 0 reduce differently",
                        "set reduce or shard_states for all experts, or plan.update to another value");
    }
}

void Plan::check_updates(std::string_view where, const std::vector<std::string>& unit_names) const {
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitPlan& unit = units[u];
    if (unit.update_on == Tier::device) continue;
    const std::string of = u < unit_names.size() ? unit_names[u] + ": " : "";
    if (unit.update_on == Tier::nvme)
      throw UserError(Exit::usage, std::string(where) + "update_on", of + "nothing computes on nvme",
                      "expected device or host");
    for (const auto& [part, tier] :
         {std::pair("parameters", unit.parameters), {"gradients", unit.gradients}, {"states", unit.states}})
      if (tier != Tier::host)
        throw UserError(
            Exit::usage, std::string(where) + "update_on",
            of + "an update on the host needs its buffers there, and " + part + " are on " + std::string(name(tier)),
            "put parameters, gradients and states on the host, or leave update_on at \"device\"");
  }
}

std::string Plan::keeps_apart() const {
  const auto on_device = [](const UnitPlan& unit) {
    return unit.parameters == Tier::device && unit.gradients == Tier::device && unit.states == Tier::device &&
           !unit.offloads();
  };
  if (mesh[Axis::pp] > 1) return "ranks of a pipeline have stages of one expert at a time";
  if (idle != Tier::device) return "an inactive expert is not on the device";
  if (!std::ranges::all_of(units, on_device)) return "the plan offloads";
  if (update != Update::end) return "updates are not at the end of a pass";
  if (compute == DType::f16 || reduce == DType::f16) return "the loss scale of a pass depends on the one before it";
  if (states.optimizer == Optimizer::prodigy) return "the optimizer finds a step size from pass to pass";
  return "";
}

Plan::Slice Plan::slice(int dp_rank, int64_t micro) const {
  const auto bound = [&](int rank) {  // first sample of a dp rank
    return shares.empty() ? rank * global_batch / mesh.dp_size()
                          : std::accumulate(shares.begin(), shares.begin() + rank, int64_t{0});
  };
  const int64_t end = bound(dp_rank + 1);
  const int64_t begin = std::min(end, bound(dp_rank) + micro * micro_batch);
  return {begin, std::min(micro_batch, end - begin)};
}

int Plan::first_unit(int stage) const {
  const int count = static_cast<int>(units.size());
  if (stage == stages()) return count;
  return pipeline.first.empty() ? stage * count / stages() : pipeline.first.at(stage);
}

int Plan::stage_of(int unit) const {
  int stage = 0;
  while (stage + 1 < stages() && first_unit(stage + 1) <= unit) ++stage;
  return stage;
}

bool Plan::owns(int rank, int unit) const {
  const int ranks = mesh[Axis::pp];
  return ranks == 1 || stage_of(unit) % ranks == mesh.coordinate(rank, Axis::pp);
}

std::string Plan::summary() const {
  const auto units_with = [&](auto wanted) {
    return std::count_if(units.begin(), units.end(), [&](const UnitPlan& unit) { return wanted(unit); });
  };
  const auto total = static_cast<int64_t>(units.size());
  const auto kept = units_with([](const UnitPlan& u) { return u.activations == Policy::keep; });
  std::string text = "keep " + std::to_string(kept) + " of " + std::to_string(total) + " units";
  for (const NamedPolicy& named : named_policies())
    if (const auto n = units_with([&](const UnitPlan& u) { return u.activations == named.policy; });
        n > 0 && named.policy != Policy::keep)
      text += ", " + std::string(named.name) + " " + std::to_string(n);
  std::map<std::string, int> results;  // by site: number of units that keep its result
  for (const UnitPlan& unit : units)
    for (const auto& [site, policy] : unit.sites)
      if (unit.activations == Policy::recompute && site != kBlockInput && policy != Policy::recompute) ++results[site];
  std::string again;
  for (const auto& [site, n] : results) again += (again.empty() ? "" : ", ") + site + " of " + std::to_string(n);
  if (!again.empty()) text += " (" + again + " not recomputed)";
  if (const auto n = units_with([](const UnitPlan& u) { return !leaves_device(u.activations) && u.offloads(); }))
    text += ", some of " + std::to_string(n) + " offloaded";
  if (const auto n = units_with([](const UnitPlan& u) { return u.offloads() && u.offload_to == Tier::nvme; }))
    text += " (" + std::to_string(n) + " to nvme)";
  if (const auto n = units_with([](const UnitPlan& u) { return !is_lossy(u.activations) && u.compresses(); }))
    text += ", some of " + std::to_string(n) + " compressed";
  for (Tier tier : {Tier::host, Tier::nvme}) {
    std::string parts;
    for (const auto& [part, member] : {std::pair("parameters", &UnitPlan::parameters),
                                       {"gradients", &UnitPlan::gradients},
                                       {"states", &UnitPlan::states}})
      if (const auto n = units_with([&](const UnitPlan& u) { return u.*member == tier; }))
        parts += std::string(parts.empty() ? "" : " and ") + part + (n == total ? "" : " of " + std::to_string(n));
    if (!parts.empty()) text += ", " + parts + " on " + std::string(name(tier));
  }
  for (Strategy strategy : {Strategy::shard_grad_op, Strategy::shard_states, Strategy::no_shard, Strategy::two_level})
    if (const auto n = units_with([&](const UnitPlan& u) { return u.strategy == strategy; }))
      text += ", " + std::string(name(strategy)) + " " + std::to_string(n);
  if (states.masters != Masters::fp32) text += ", masters " + std::string(name(states.masters));
  if (states.moments != Moments::fp32) text += ", moments " + std::string(name(states.moments));
  if (compute != DType::f32)
    text += ", computes in " + std::string(compute_name()) + (gather_fp8 ? ", gathers codes of 8 bits" : "");
  else if (states.masters == Masters::fp32 && param_dtype != DType::f32)
    text += ", parameters gathered as " + std::string(name(param_dtype));
  if (reduce != DType::f32) text += ", gradients reduced as " + std::string(name(reduce));
  if (rounds_gradients()) text += ", gradients stored as " + std::string(name(grad));
  if (mesh[Axis::pp] > 1) {
    text += ", pipeline " + std::string(name(pipeline.schedule));
    if (pipeline.chunks > 1) text += " with " + std::to_string(pipeline.chunks) + " chunks a rank";
  }
  if (experts > 1)
    text += (teachers > 0  ? ", a frozen teacher"
             : shared_base ? ", " + std::to_string(experts) + " networks of one base"
                           : ", " + std::to_string(experts) + " experts") +
            std::string(", idle on ") + std::string(name(idle));
  for (const auto& [expert, own] : of_expert) text += ", expert " + std::to_string(expert) + " with other units";
  if (update == Update::just_in_time) text += ", updates just in time";
  if (update == Update::in_backward) text += ", updates in backward";
  if (const auto n = units_with([](const UnitPlan& u) { return u.update_on == Tier::host; }))
    text += ", updates" + (n == total ? "" : " of " + std::to_string(n)) + " on the host";
  text += ", prefetch " + std::to_string(prefetch);
  text += ", global batch " + std::to_string(global_batch) + " in " + std::to_string(accumulation()) +
          " micro-batch(es) of at most " + std::to_string(micro_batch);
  return text + ", mesh " + mesh.to_string();
}

Plan teacher_plan(size_t units, const Plan& student) {
  Plan plan;
  static_cast<Formats&>(plan) = student;
  plan.mesh = student.mesh, plan.local_world = student.local_world;
  plan.global_batch = student.global_batch, plan.micro_batch = student.micro_batch, plan.shares = student.shares;
  plan.prefetch = student.prefetch;
  plan.states = {}, plan.gather_fp8 = false;
  plan.units.assign(units, {});
  for (UnitPlan& unit : plan.units) unit.parameters = student.teacher;
  return plan;
}

bool uses_nvme(const Plan& plan) {
  return (plan.experts > 1 && plan.idle == Tier::nvme) ||
         std::any_of(plan.units.begin(), plan.units.end(), [](const UnitPlan& unit) {
           return unit.parameters == Tier::nvme || unit.gradients == Tier::nvme || unit.states == Tier::nvme ||
                  (unit.offloads() && unit.offload_to == Tier::nvme);
         });
}

void require_nvme_folder(std::string_view folder, std::string_view who) {
  if (folder.empty())
    throw UserError(Exit::usage, "plan.nvme", std::string(who) + ", and plan.nvme names no folder",
                    "set plan.nvme to a folder on the disk to use");
}

}  // namespace tessera::plan
