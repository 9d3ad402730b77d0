#include "tessera/plan/memory.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

/// Live bytes of activations along the compute lane, instruction by instruction; mirrors engine/executor.cpp.
class Walk {
 public:
  Walk(const ModelSpec& model, const Plan& plan, bool train) : model_(model), plan_(plan), train_(train) {
    for (size_t u = 0; u < model.units.size(); ++u) units_.push_back(facts(static_cast<int>(u)));
  }

  /// Highest bytes while `in` runs.
  int64_t run(const Instruction& in) {
    const int64_t before = live_;
    switch (in.op) {
      case Op::forward:
        return forward(in.unit);
      case Op::loss:
        live_ += model_.loss_grad - model_.targets;
        live_ -= model_.units.back().cost.out;  // the prediction
        return before + model_.loss_peak;
      case Op::finish:
        live_ -= model_.inputs + conditioning() + model_.units.back().cost.out;
        return before;
      case Op::recompute:
        live_ += units_[in.unit].rebuilt;
        return before + units_[in.unit].recompute_peak;
      case Op::backward:
        return backward(in.unit);
      case Op::drop:
        live_ -= in.part == Part::activations ? in.bytes : 0;
        return before;
      case Op::fetch:  // its memory is taken when the compute lane comes to it
        live_ += in.part == Part::activations ? in.bytes : 0;
        return live_;
      default:
        return before;
    }
  }

  int64_t live() const { return live_; }

 private:
  /// What the unit's plan makes of its footprint.
  struct Facts {
    int64_t forward_peak;    // highest in forward
    int64_t kept;            // held from forward to backward, beside out and conditioning
    int64_t recompute_peak;  // highest in recompute
    int64_t rebuilt;         // further bytes of a rebuilt graph
  };

  Facts facts(int unit) const {
    const Footprint& f = model_.units[unit].cost;
    if (!train_) return {f.forward_peak, 0, 0, 0};
    const UnitPlan& plan = plan_.units[unit];
    if (plan.activations != Policy::recompute) return {f.keep_peak, f.saved, 0, 0};
    const std::string sites = replayed_sites(model_.units[unit], plan);
    if (sites.empty()) return {f.forward_peak, 0, f.recompute_peak, f.recompute_saved};
    const Footprint::Replay& replay = f.replays.at(sites);
    int64_t kept = 0;
    for (const auto& [site, bytes] : f.attention)
      if (plan.policy(site) != Policy::recompute) kept += bytes;
    return {replay.forward_peak, kept, replay.recompute_peak, replay.recompute_saved};
  }

  int64_t forward(int unit) {
    if (unit == 0) {
      live_ += model_.inputs + (train_ ? model_.targets : 0);
      cond_.assign(cond_.size(), false);
    }
    const Footprint& f = model_.units[unit].cost;
    const int64_t peak = live_ + units_[unit].forward_peak;
    live_ += f.out + f.cond + units_[unit].kept;
    if (!train_ && unit > 0) live_ -= model_.units[unit - 1].cost.out;
    return peak;
  }

  int64_t backward(int unit) {
    const Footprint& f = model_.units[unit].cost;
    const int64_t peak = live_ + f.backward_peak;
    live_ -= units_[unit].kept + units_[unit].rebuilt;
    if (unit > 0) live_ -= model_.units[unit - 1].cost.out;  // this unit's input was the last to hold it
    live_ -= unit + 1 == static_cast<int>(model_.units.size()) ? model_.loss_grad : model_.units[unit + 1].cost.grad_in;
    live_ += f.grad_in;
    cond_.resize(std::max(cond_.size(), f.grad_cond.size()));
    for (size_t c = 0; c < f.grad_cond.size(); ++c) {
      if (f.grad_cond[c] == 0 || cond_[c]) continue;
      cond_[c] = true;
      cond_bytes_ += f.grad_cond[c];
      live_ += f.grad_cond[c];
    }
    if (unit == 0) {  // the micro-batch is over
      live_ -= model_.inputs + cond_bytes_ + f.grad_in + conditioning();
      cond_bytes_ = 0;
      cond_.assign(cond_.size(), false);
    }
    return peak;
  }

  int64_t conditioning() const {
    int64_t bytes = 0;
    for (const auto& unit : model_.units) bytes += unit.cost.cond;
    return bytes;
  }

  const ModelSpec& model_;
  const Plan& plan_;
  const bool train_;
  std::vector<Facts> units_;
  int64_t live_ = 0, cond_bytes_ = 0;
  std::vector<bool> cond_;  // conditioning gradients that exist
};

}  // namespace

std::string replayed_sites(const UnitSpec& unit, const UnitPlan& plan) {
  std::string sites;
  if (plan.activations != Policy::recompute) return sites;
  for (const auto& [site, bytes] : unit.cost.attention)
    if (plan.policy(site) != Policy::recompute) sites += (sites.empty() ? "" : ",") + site;
  return sites;
}

void check_sites(const ModelSpec& model, const Plan& plan) {
  for (size_t u = 0; u < model.units.size() && u < plan.units.size(); ++u) {
    const Footprint& f = model.units[u].cost;
    const bool again = plan.units[u].activations == Policy::recompute;
    std::vector<std::string> known = {std::string(kBoundary)};
    for (const auto& [site, bytes] : again ? f.attention : f.saved_by_site) known.push_back(site);
    for (const auto& [site, policy] : plan.units[u].sites)
      if (std::find(known.begin(), known.end(), site) == known.end())
        throw UserError(Exit::usage, "plan.sites",
                        model.units[u].name + " has no site '" + site + "' to " + std::string(name(policy)) +
                            (again ? " (a recomputed unit keeps what attention made, and its boundary)" : ""),
                        "did you mean '" + nearest(site, known).front() + "'?");
    if (again && !replayed_sites(model.units[u], plan.units[u]).empty() &&
        !f.replays.contains(replayed_sites(model.units[u], plan.units[u])))
      throw UserError(Exit::usage, "plan.sites",
                      model.units[u].name + ": with so many attention sites all of them are kept or none",
                      "name them all in sites, or none");
  }
}

int64_t offloaded_bytes(const ModelSpec& model, const Plan& plan, int unit) {
  const UnitPlan& choice = plan.units[unit];
  const Footprint& f = model.units[unit].cost;
  // The first unit's input is the batch, which others read.
  int64_t bytes = unit > 0 && choice.policy(kBoundary) == Policy::offload ? model.units[unit - 1].cost.out : 0;
  for (const auto& [site, saved] : choice.activations == Policy::recompute ? f.attention : f.saved_by_site)
    if (choice.policy(site) == Policy::offload) bytes += saved;
  return bytes;
}

MemoryCurve memory_curve(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank, int64_t arena) {
  MemoryCurve curve;
  MemoryParts base;
  const StatesOf states = adamw_states(plan.states);
  const auto place = [&](Tier tier) -> MemoryParts& {
    return tier == Tier::device ? base : tier == Tier::host ? curve.host : curve.nvme;
  };
  for (size_t u = 0; u < model.units.size(); ++u) {
    const FlatLayout layout = flat_layout(model.units[u], plan.shards(static_cast<int>(u)));
    const UnitPlan& unit = plan.units[u];
    place(unit.parameters).parameters += layout.shard * master_bytes(plan.states.masters);
    place(unit.gradients).gradients += layout.shard * 4;
    place(unit.states).states +=
        state_layout(model.units[u], layout, layout.shards > 1 ? plan.mesh.shard_rank(rank) : 0, states).bytes;
  }
  curve.host.slots = schedule.host_arena;
  curve.persistent = base.total();
  base.slots = std::max(arena, schedule.arena);
  base.activations = model.resident;
  Walk walk(model, plan, schedule.phase == "train");
  for (size_t i = 0; i < schedule.list.size(); ++i) {
    const Instruction& in = schedule.list[i];
    const int64_t held = walk.live();
    const int64_t highest = base.total() + walk.run(in);
    curve.live.push_back(highest);
    if (highest <= curve.peak) continue;
    curve.peak = highest;
    curve.at = static_cast<int>(i);
    curve.at_name = std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name);
    curve.by_part = base;
    curve.by_part.activations += held;
    curve.by_part.temporaries = highest - base.total() - held;
  }
  return curve;
}

}  // namespace tessera::plan
