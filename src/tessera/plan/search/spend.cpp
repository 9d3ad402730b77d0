#include "tessera/plan/search/spend.h"

#include <string>

#include "tessera/plan/search/mix.h"
#include "tessera/plan/search/search_space.h"

namespace tessera::plan {

namespace {

class Passes {
 public:
  Passes(Pool& pool, const Evaluator& evaluator, const Mesh& mesh, const std::vector<Pipeline>& pipelines)
      : pool_(pool), evaluator_(evaluator), mesh_(mesh), pipelines_(pipelines) {}

  void run() {
    if (!evaluator_.input.recompute_units && !evaluator_.input.activations)
      for (const Sites sites : {Sites::long_attention, Sites::long_attention_and_ffn, Sites::all}) keep_results(sites);
    double before;
    do {  // repeated while it helps: what leaves the host makes room for what is on disk
      before = pool_.best->candidate.seconds;
      promote_buffers();
      promote_activations();
    } while (pool_.best->candidate.seconds < before);
    save_activations();
    if (share_updates()) save_activations();  // other ones are best saved where copies have more room
    if (!evaluator_.input.strategy && mesh_.shard_size() > 1) {
      int released = 0;
      for (const UnitPlan& unit : pool_.best->candidate.plan.units) released += unit.strategy == Strategy::full_shard;
      if (released > 0)
        pool_.most(released, [](Plan& plan, int n) {  // last units first: they stay gathered for the shortest time
          for (size_t u = plan.units.size(); u-- > 0 && n > 0;)
            if (plan.units[u].strategy == Strategy::full_shard) plan.units[u].strategy = Strategy::shard_grad_op, --n;
        });
    }
    if (!evaluator_.input.activations) {
      const auto& units = pool_.best->candidate.plan.units;
      const auto selective = [](const UnitPlan& unit) { return unit.activations == Policy::rebuild; };
      if (const auto count = std::count_if(units.begin(), units.end(), selective); count > 0)
        pool_.most(static_cast<int>(count), [&](Plan& plan, int n) {  // last units first
          for (size_t u = plan.units.size(); u-- > 0 && n > 0;)
            if (selective(plan.units[u])) plan.units[u].activations = Policy::keep, --n;
        });
    }
    for (const Pipeline& pipeline : pipelines_) {
      Plan plan = pool_.best->candidate.plan;
      plan.pipeline = pipeline;
      if (plan != pool_.best->candidate.plan) pool_.consider(evaluator_.evaluate(std::move(plan)));
    }
    if (!evaluator_.input.prefetch && (mesh_.shard_size() > 1 || pool_.best->candidate.host > 0))
      for (int depth : {2, 1}) {
        Plan plan = pool_.best->candidate.plan;
        if (std::exchange(plan.prefetch, depth) != depth) pool_.consider(evaluator_.evaluate(std::move(plan)));
      }
  }

 private:
  /// Moves as many units' buffers as fit from disk or host towards the device, most frequently moved buffers first.
  void promote_buffers() {
    for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::parameters, &UnitPlan::states})
      for (const auto& [from, to] :
           {std::pair(Tier::nvme, Tier::host), {Tier::nvme, Tier::device}, {Tier::host, Tier::device}}) {
        if (evaluator_.input.*user_tier_of(part)) continue;
        const auto& units = pool_.best->candidate.plan.units;
        const auto away = std::count_if(units.begin(), units.end(), [&](const UnitPlan& u) { return u.*part == from; });
        if (away > 0)
          pool_.most(static_cast<int>(away), [part, from = from, to = to](Plan& plan, int n) {
            for (size_t u = 0; u < plan.units.size() && n > 0; ++u)
              if (plan.units[u].*part == from) plan.units[u].*part = to, --n;
          });
      }
  }

  /// Gives each block its way of saving activations.
  void save_activations() {
    offload_instead();
    if (evaluator_.input.recompute_units || evaluator_.input.activations) return;
    for (const size_t last : {8, 4, 2, 0})
      if (Plan plan = alternate_offloading(pool_.best->candidate.plan, evaluator_, last);
          plan != pool_.best->candidate.plan)
        pool_.consider(evaluator_.evaluate(std::move(plan)));
    mix_activations(pool_, evaluator_);
  }

  /// Lets the host update a part of the units whose states it has, with all their buffers there, beside those that the
  /// device updates: their gradients and states then never cross the link. Evenly spread, so that both go on all the time.
  /// Whether that made the best plan faster.
  bool share_updates() {
    if (!may_update_on_host(evaluator_.input)) return false;
    const Plan from = pool_.best->candidate.plan;
    std::vector<size_t> away;
    for (size_t u = 0; u < from.units.size(); ++u)
      if (from.units[u].states == Tier::host) away.push_back(u);
    constexpr size_t kParts = 8;
    for (size_t part = 0; part <= kParts && away.size() > 1; ++part) {
      Plan plan = from;
      for (size_t i = 0; i < away.size(); ++i) {
        UnitPlan& unit = plan.units[away[i]];
        unit.update_on = Tier::device;
        if ((i + 1) * part / kParts > i * part / kParts) unit.parameters = unit.gradients = unit.update_on = Tier::host;
      }
      if (plan != from) pool_.consider(evaluator_.evaluate(std::move(plan)));
    }
    return pool_.best->candidate.plan != from;
  }

  /// Moves as many units' offloaded activations as fit from disk to host memory, last units first, because their
  /// backward comes soonest.
  void promote_activations() {
    if (evaluator_.input.offload_to) return;
    const auto& units = pool_.best->candidate.plan.units;
    const auto away =
        std::count_if(units.begin(), units.end(), [](const UnitPlan& u) { return u.offload_to == Tier::nvme; });
    if (away > 0)
      pool_.most(static_cast<int>(away), [](Plan& plan, int n) {
        for (size_t u = plan.units.size(); u-- > 0 && n > 0;)
          if (plan.units[u].offload_to == Tier::nvme) plan.units[u].offload_to = Tier::host, --n;
      });
  }

  /// Replaces recompute of units by offload: for as many units as fit, and for fewer, in case the link is too slow.
  void offload_instead() {
    if (evaluator_.input.host_budget <= 0 || evaluator_.input.recompute_units || evaluator_.input.activations) return;
    const auto& units = pool_.best->candidate.plan.units;
    const auto recomputing =
        std::count_if(units.begin(), units.end(), [](const UnitPlan& u) { return u.activations == Policy::recompute; });
    const Plan from = pool_.best->candidate.plan;
    const auto change = [](Plan& plan, int n) {
      for (UnitPlan& unit : plan.units)
        if (unit.activations == Policy::recompute && n-- > 0) unit.activations = Policy::offload, unit.sites.clear();
    };
    if (recomputing > 0) pool_.most(static_cast<int>(recomputing), change);
    for (auto n = recomputing / 2; n > 0; n /= 2) {
      Plan plan = from;
      change(plan, static_cast<int>(n));
      pool_.consider(evaluator_.evaluate(std::move(plan)));
    }
  }

  /// Keeps the results of these sites in as many recomputed units as fit.
  void keep_results(Sites which) {
    const auto lacking = [&](const Plan& plan, size_t u) {
      std::vector<std::string> sites;
      if (plan.units[u].activations == Policy::recompute)
        sites = kept_sites(evaluator_.model.units[u], evaluator_.machine, which);
      std::erase_if(sites, [&](const auto& site) { return plan.units[u].policy(site) != Policy::recompute; });
      return sites;
    };
    int units = 0;
    for (size_t u = 0; u < evaluator_.model.units.size(); ++u) units += !lacking(pool_.best->candidate.plan, u).empty();
    if (units > 0)
      pool_.most(units, [&](Plan& plan, int n) {
        for (size_t u = 0; u < plan.units.size() && n > 0; ++u) {
          const std::vector<std::string> sites = lacking(plan, u);
          for (const std::string& site : sites) plan.units[u].sites[site] = Policy::keep;
          n -= !sites.empty();
        }
      });
  }

  Pool& pool_;
  const Evaluator& evaluator_;
  const Mesh& mesh_;
  const std::vector<Pipeline>& pipelines_;
};

}  // namespace

void spend(Pool& pool, const Evaluator& evaluator, const Mesh& mesh, const std::vector<Pipeline>& pipelines) {
  Passes(pool, evaluator, mesh, pipelines).run();
}

}  // namespace tessera::plan
