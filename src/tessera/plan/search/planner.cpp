#include "tessera/plan/search/planner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/search/mix.h"
#include "tessera/plan/search/search_space.h"
#include "tessera/plan/unit_keys.h"

namespace tessera::plan {

namespace {

std::vector<size_t> blocks_of(const ModelSpec& model) {
  std::vector<size_t> blocks;
  for (size_t u = 0; u < model.units.size(); ++u)
    if (is_block(model.units[u])) blocks.push_back(u);
  return blocks;
}

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

/// Spends the memory that the best plan of a search leaves, pass by pass: pool.best is as fast afterwards or faster.
/// `pipelines`: those to choose from; empty without a pp axis.
void spend(Pool& pool, const Evaluator& evaluator, const Mesh& mesh, const std::vector<Pipeline>& pipelines) {
  Passes(pool, evaluator, mesh, pipelines).run();
}

/// How often the last passes are repeated, and the share of a step that they must gain for that.
constexpr int kRounds = 3;
constexpr double kLittleGain = 1e-4;

class Search {
 public:
  Search(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Machine& machine)
      : model_(model),
        mesh_(mesh),
        input_(input),
        machine_(machine),
        by_hand_(input.units, model, input.expert_names),
        evaluator_(model, input, machine, by_hand_, blocks_of(model)),
        pool_(evaluator_) {
    for (const auto& unit : model.units) {
      if (!is_block(unit)) continue;
      ++blocks_;
      rebuilds_ |= unit.cost.selective && unit.cost.selective->saved < unit.cost.saved;
      products_ |=
          kept_sites(unit, machine, Sites::long_attention_and_ffn) != kept_sites(unit, machine, Sites::long_attention);
    }
    Plan sites;
    sites.experts = input.experts, sites.units.resize(model.units.size());
    by_hand_.apply(sites.units);
    for (const Plan& step : evaluator_.steps_of(sites)) check_sites(model, step);
    if (mesh[Axis::pp] > 1) pipelines_ = pipelines(model, mesh, input, machine);
  }

  Choice run() {
    const bool whole = mesh_.shard_size() == 1;
    std::vector<Strategy> strategies = {Strategy::shard_grad_op, Strategy::full_shard};
    if (whole) strategies = {Strategy::full_shard};
    const bool alike = !by_hand_.any_of_one_expert();  // else buffers stay those that each expert's strategy has
    if (mesh_[Axis::dp_replicate] > 1 && alike) strategies.push_back(Strategy::two_level);
    if (input_.strategy) strategies = {*input_.strategy};
    // Frozen weights that the ranks of a machine share on the host take no more of it whole than in shards, and no messages.
    const bool shares = !whole && alike && !input_.strategy && input_.local_world > 1 && has_frozen();
    // Depth 0 needs fewer slots; depth 2 is only tried on the best plan.
    const std::vector<int> depths = input_.prefetch ? std::vector{*input_.prefetch} : std::vector{1, 0};
    std::vector<Update> whens = {input_.update.value_or(Update::end)};
    if (!input_.update && input_.may_update_in_backward && alike) whens.push_back(Update::in_backward);
    const auto search = [&](Update when, bool on_host) {
      update_ = when, on_host_ = on_host;
      for (const Tiers& tiers : tier_choices(input_)) {
        std::vector<Strategy> tried = strategies;
        if (shares && tiers.parameters == Tier::host) tried.push_back(Strategy::no_shard);
        for (Strategy strategy : tried)
          for (int depth : depths)
            if (depth > 0 || !whole || tiers != kOnDevice || input_.prefetch)
              if ((!input_.first_that_fits || !pool_.best) && (!on_host || tiers == kOnHost))
                level(tiers, strategy, depth);
      }
    };
    if (input_.first_that_fits && lasting_bytes_exceed_memory(model_, mesh_, input_)) {
      pool_.consider(evaluator_.evaluate(plan_of(tier_choices(input_).back(), strategies.back(), 0, Saving{}, 0)));
      return finish();
    }
    if (input_.first_that_fits) {  // what takes least tells at once that nothing fits
      update_ = whens.back();
      level(tier_choices(input_).back(), strategies.back(), depths.back());
      if (!pool_.best) return finish();
      pool_.best.reset();
    }
    if (input_.incumbent) pool_.consider(evaluator_.evaluate(*input_.incumbent));
    for (const Update when : whens) search(when, false);
    if (!pool_.best && may_mix() && !input_.first_that_fits) mix_activations(pool_, evaluator_);
    if (!pool_.best || input_.first_that_fits) return finish();
    plan::spend(pool_, evaluator_, mesh_, pipelines_);
    // Another pipeline keeps more at once: where the best plan does not fit with it, one that saves more may.
    for (pipeline_ = 1; pipeline_ < pipelines_.size(); ++pipeline_) {
      const Evaluated best = *pool_.best;
      for (const Update when : whens) search(when, false);
      if (pool_.best->candidate.plan != best.candidate.plan) plan::spend(pool_, evaluator_, mesh_, pipelines_);
    }
    const auto at = std::ranges::find(pipelines_, pool_.best->candidate.plan.pipeline);
    pipeline_ = at == pipelines_.end() ? 0 : static_cast<size_t>(at - pipelines_.begin());
    const double at_end = pool_.best->candidate.seconds;
    move_updates();
    if (input_.update || !has_offloaded_buffers(pool_.best->candidate.plan)) return trade_and_finish();
    // The best plan with updates at the end need not be the best with overlapped updates, which need slots earlier and
    // other tiers. So the whole search is repeated with them.
    Evaluated before = *std::exchange(pool_.best, std::nullopt);
    search(Update::just_in_time, false);
    if (may_update_on_host(input_)) search(Update::just_in_time, true);
    if (pool_.best) plan::spend(pool_, evaluator_, mesh_, pipelines_);
    if (pool_.best && pool_.best->candidate.seconds < before.candidate.seconds * (1 - 1e-9))
      without_moved_updates_ = at_end;
    else
      pool_.best = std::move(before);
    return trade_and_finish();
  }

 private:
  Choice trade_and_finish() {
    if (may_mix() && input_.trades) trade_memory(pool_, evaluator_);
    // The best plan may want other updates by now, and the passes before these: while that helps.
    for (int round = 0; round < kRounds && input_.trades; ++round) {
      const double before = pool_.best->candidate.seconds;
      move_updates();
      if (pool_.best->candidate.seconds >= before * (1 - kLittleGain)) break;
      plan::spend(pool_, evaluator_, mesh_, pipelines_);
    }
    return finish();
  }

  /// `rest`: policy of the other blocks, keep or rebuild.
  Plan plan_of(const Tiers& tiers, Strategy strategy, int prefetch, const Saving& saving, int saving_blocks,
               Policy rest = Policy::keep) const {
    Plan plan;
    plan.mesh = mesh_, plan.local_world = input_.local_world;
    plan.global_batch = input_.global_batch;
    plan.micro_batch = input_.micro_batch;
    plan.prefetch = prefetch;
    plan.update = update_, plan.update_threads = input_.update_threads;
    static_cast<Formats&>(plan) = input_;
    plan.experts = input_.experts, plan.teachers = input_.teachers, plan.shared_base = input_.shared_base;
    plan.teacher = input_.teacher;
    plan.idle = input_.idle.value_or(Tier::device);
    if (!pipelines_.empty()) plan.pipeline = pipelines_[pipeline_];
    // The first blocks recompute or offload, because their activations live longest; with recompute_every, blocks at
    // its multiples do.
    int block = -1;
    for (const auto& unit : model_.units) {
      UnitPlan choice;
      choice.strategy = strategy;
      choice.reduce_once = input_.reduce_once.value_or(false);
      choice.parameters = tiers.parameters, choice.gradients = tiers.gradients, choice.states = tiers.states;
      choice.update_on = input_.update_on.value_or(on_host_ ? Tier::host : Tier::device);
      choice.offload_to = input_.offload_to.value_or(Tier::host);
      block += is_block(unit);
      if (is_block(unit) && saving_blocks > 0 &&
          (input_.recompute_every > 0 ? block % input_.recompute_every == 0 : block < saving_blocks)) {
        choice.activations = saving.recomputes() ? Policy::recompute : saving.activations;
        if (saving.activations == kRecomputeOffload.policy) choice.sites[std::string(kBlockInput)] = Policy::offload;
        if (saving.recomputes() && saving.results != Policy::recompute)
          for (const std::string& site : kept_sites(unit, machine_, saving.sites)) choice.sites[site] = saving.results;
      } else if (is_block(unit)) {
        choice.activations = rest;
      }
      plan.units.push_back(std::move(choice));
    }
    if (update_ == Update::in_backward && plan.accumulation() == 1 && !input_.gradients)
      for (UnitPlan& unit : plan.units)  // their only use directly follows
        if (unit.update_on == Tier::device) unit.gradients = Tier::device;
    return plan;
  }

  bool has_frozen() const {
    return std::ranges::any_of(model_.units, [](const UnitSpec& unit) {
      return std::ranges::any_of(unit.params, [](const ParamSpec& param) { return !param.trainable; });
    });
  }

  /// The plan whose blocks have saved as little as they may so far, over the budget.
  struct Unsaved {
    StepSeconds step;    ///< without any saving: work that saving only adds to
    Candidate none;      ///< keeps all, or what selective recompute keeps
    Saving saving = {};  ///< of all its blocks
  };

  /// Lower bound of the compute of a step in which the fewest blocks of such a plan save so: each gives back at most what it
  /// no longer keeps, and the compute lane computes that again. Infinite where all of them do not give back enough. (What
  /// the step waits for beside is no bound: where the host's budget is small, buffers return to the device.)
  double least_seconds(const Unsaved& unsaved, const Saving& saving) const {
    if (mesh_[Axis::pp] > 1) return 0;  // a stage holds the activations of several micro-batches
    const Plan before = plan_of(kOnDevice, Strategy::full_shard, 0, unsaved.saving, blocks_),
               after = plan_of(kOnDevice, Strategy::full_shard, 0, saving, blocks_);
    double added = INFINITY, already = INFINITY;  // seconds of a block
    int64_t freed = 0;
    std::set<std::string> kinds;
    for (const size_t u : evaluator_.blocks) {
      if (!kinds.insert(model_.units[u].kind).second) continue;
      const MixOption old = mix_option(model_, before, machine_, u), own = mix_option(model_, after, machine_, u);
      const int64_t input = u > 0 ? model_.units[u - 1].cost.out : 0;  // which a saving may send away too
      freed = std::max(freed, old.kept + input - own.kept);
      added = std::min(added, own.seconds - old.seconds), already = std::min(already, old.seconds);
    }
    const int64_t excess = over_device(input_, unsaved.none);
    // One block less: what the instruction at the peak takes beside is another one's with another saving.
    const int64_t fewest = freed > 0 ? std::max<int64_t>(0, div_up(excess, freed) - 1) : blocks_ + 1;
    if (fewest > blocks_) return INFINITY;
    const auto micros = static_cast<double>(before.accumulation());
    const auto saving_blocks = static_cast<double>(added > 0 ? fewest : blocks_);
    return unsaved.step.compute + micros * (blocks_ * already + saving_blocks * added);
  }

  /// Tries all memory savings for one choice of tiers and strategy.
  void level(const Tiers& tiers, Strategy strategy, int prefetch) {
    const int by_hand = input_.recompute_units ? std::min(*input_.recompute_units, blocks_) : -1;
    const bool may_save = input_.activations != Policy::keep;
    Unsaved unsaved;
    if (by_hand <= 0 && (!input_.activations || *input_.activations == Policy::keep)) {
      Evaluated all = evaluator_.within_host_budget(plan_of(tiers, strategy, prefetch, Saving{}, 0));
      const bool fits = all.candidate.fits;
      unsaved.none = all.candidate;
      if (fits && strategy == Strategy::full_shard && !input_.strategy && mesh_.shard_size() > 1) {
        pool_.consider(evaluator_.fewest(static_cast<int>(model_.units.size()), std::move(all), [&](int sharded) {
          Plan plan = unsaved.none.plan;
          for (size_t u = static_cast<size_t>(sharded); u < plan.units.size(); ++u)
            plan.units[u].strategy = Strategy::shard_grad_op;
          return evaluator_.within_host_budget(std::move(plan));
        }));
        return;
      }
      pool_.consider(std::move(all));
      if (fits || !may_save) return;  // saving memory only costs time
    }
    if (!may_save) return;
    const auto slower = [&](double seconds) {
      return pool_.best && seconds > pool_.best->candidate.seconds * (1 + 1e-9);
    };
    if (pool_.best) unsaved.step = evaluator_.seconds(plan_of(tiers, strategy, prefetch, Saving{}, 0));
    if (slower(unsaved.step.total)) return;
    for (const Saving& saving : savings(input_)) {
      if (input_.first_that_fits && pool_.best) return;
      const bool asked_for = is_lossy(saving.activations) ||
                             (saving.activations == input_.activations && leaves_device(*input_.activations) &&
                              (!saving.recomputes() || saving.results != Policy::offload));
      if (saving.host() && input_.host_budget <= 0 && !asked_for) continue;
      // A user's `recompute` leaves the placement of block inputs open.
      const bool matches_input =
          saving.activations == input_.activations || (input_.activations == Policy::recompute && saving.recomputes());
      if (input_.activations && !matches_input) continue;
      if (saving.activations == Policy::rebuild ? !rebuilds_ && !input_.activations : by_hand == 0) continue;
      // A user's recompute setting is applied as given.
      if (by_hand > 0 &&
          (saving.results != Policy::recompute || saving.activations != input_.activations.value_or(Policy::recompute)))
        continue;
      if (saving.sites == Sites::long_attention_and_ffn && !products_) continue;  // attention sites are the only ones
      if (by_hand > 0 || input_.activations) {
        const int blocks = by_hand > 0 ? by_hand : blocks_;
        Evaluated asked = evaluator_.measured(plan_of(tiers, strategy, prefetch, saving, blocks));
        const bool fits = asked.candidate.fits;
        pool_.consider(std::move(asked));
        if (!fits && rebuilds_ && blocks < blocks_)
          pool_.consider(evaluator_.evaluate(plan_of(tiers, strategy, prefetch, saving, blocks, Policy::rebuild)));
        continue;
      }
      const double least = pool_.best ? least_seconds(unsaved, saving) : 0;
      if (slower(least) && (least < INFINITY || saving.activations != Policy::rebuild)) continue;
      const auto with = [&](int blocks) {
        const Policy rest = unsaved.saving.activations;
        return evaluator_.within_host_budget(plan_of(tiers, strategy, prefetch, saving, blocks, rest));
      };
      Evaluated most = with(blocks_);
      if (most.candidate.fits) {
        pool_.consider(evaluator_.fewest_of_equal(blocks_, std::move(most), unsaved.none, with));
        continue;
      }
      // Selective recompute costs little: if it does not fit alone, the blocks without a stronger saving use it.
      if (saving.activations == Policy::rebuild) unsaved.none = most.candidate, unsaved.saving = saving;
      pool_.consider(std::move(most));
    }
  }

  static bool has_offloaded_buffers(const Plan& plan) {
    return std::any_of(plan.units.begin(), plan.units.end(), [](const UnitPlan& u) {
      return u.parameters != Tier::device || u.gradients != Tier::device || u.states != Tier::device;
    });
  }

  /// Tries the best plan with overlapped updates: just in time, or on the host. There is only something to gain if the
  /// buffers of updates are offloaded.
  void move_updates() {
    const Candidate before = pool_.best->candidate;
    if (!has_offloaded_buffers(before.plan)) return;
    std::vector<Update> whens = {before.plan.update};
    if (!input_.update) whens.push_back(Update::just_in_time);
    for (const bool on_host : {false, true})
      for (const Update when : whens) {
        if ((on_host && !may_update_on_host(input_)) || (!on_host && when == before.plan.update)) continue;
        Plan plan = before.plan;
        plan.update = when;
        for (UnitPlan& unit : plan.units)
          if (on_host && unit.states == Tier::host) unit.parameters = unit.gradients = unit.update_on = Tier::host;
        if (plan != before.plan) pool_.consider(evaluator_.evaluate(std::move(plan)));
      }
    if (pool_.best->candidate.plan != before.plan) without_moved_updates_ = before.seconds;
  }

  /// Whether each block may save in its own way.
  bool may_mix() const { return !input_.recompute_units && !input_.activations; }

  /// Of the plans of the same time ([Note: the same time]).
  const Plan& preferred() const {
    std::vector<size_t> fitting;
    for (size_t i = 0; i < pool_.candidates.size(); ++i)
      if (pool_.candidates[i].fits) fitting.push_back(i);
    const auto at = [&](size_t i) -> const Candidate& { return pool_.candidates[i]; };
    std::ranges::stable_sort(fitting, {}, [&](size_t i) { return std::tuple(at(i).peak, at(i).seconds, at(i).host); });
    size_t fastest = fitting.front(), chosen = fastest;
    for (const size_t& i : fitting) {
      if (!is_better(at(i), at(fastest))) continue;
      fastest = i;
      const double most = std::min(at(i).seconds * (1 + kSameTime), at(chosen).seconds * (1 + 1e-9));
      chosen = *std::find_if(std::as_const(fitting).data(), &i, [&](size_t other) {
        return at(other).seconds <= most && at(other).host <= at(i).host && pool_.disk[other] <= pool_.disk[i];
      });
    }
    return at(chosen).plan;
  }

  /// The best plan with all of its micro-batches ([Note: many micro-batches]); where that does not fit after all, or the
  /// incumbent is faster after all, the next best.
  void evaluate_whole() {
    if (!pool_.best) return;
    constexpr size_t kMost = 16;  // so many plans are looked at
    std::vector<const Candidate*> fitting;
    for (const Candidate& c : pool_.candidates)
      if (c.fits) fitting.push_back(&c);
    fastest_ = pool_.best->candidate.seconds;
    if (input_.thrifty && input_.budget > 0 && !input_.first_that_fits && !by_hand_.any_of_one_expert())
      pool_.best->candidate.plan = preferred();
    std::ranges::stable_sort(fitting, [](const Candidate* a, const Candidate* b) { return is_better(*a, *b); });
    std::optional<Evaluated> best = evaluator_.evaluate(pool_.best->candidate.plan, true);
    for (size_t i = 0; i < std::min(kMost, fitting.size()) && !best->candidate.fits; ++i)
      best = evaluator_.evaluate(fitting[i]->plan, true);
    if (input_.incumbent && *input_.incumbent != best->candidate.plan) {
      Evaluated incumbent = evaluator_.evaluate(*input_.incumbent, true);
      if (incumbent.candidate.fits && (!best->candidate.fits || is_better(incumbent.candidate, best->candidate)))
        best = std::move(incumbent);
    }
    if (!best->candidate.fits) pool_.smallest = std::exchange(best, std::nullopt);
    pool_.best = std::move(best);
  }

  Choice finish() {
    evaluate_whole();
    Choice choice;
    choice.fits = pool_.best.has_value();
    const Evaluated& winner = pool_.best ? *pool_.best : *pool_.smallest;
    choice.plan = by_hand_.with_experts(winner.candidate.plan);
    choice.seconds = winner.candidate.seconds;
    choice.memory = winner.memory;
    const std::string among =
        std::to_string(pool_.candidates.size()) + (pool_.candidates.size() == 1 ? " candidate" : " candidates");
    choice.fastest = std::min(fastest_, choice.seconds);
    if (pool_.best) {
      choice.why = choice.seconds > choice.fastest * (1 + 1e-9)
                       ? "the least memory of those that take the same time (within " +
                             std::to_string(std::lround(100 * kSameTime)) + " %) as the fastest of " + among
                       : "least predicted time of " + among;
      choice.why += ", peak " + format_bytes(winner.candidate.peak) + " at " + choice.memory.at_name;
      if (without_moved_updates_ > winner.candidate.seconds)
        choice.why += describe_gain(winner.candidate, without_moved_updates_);
    } else {
      choice.why = "nothing fits; this is the smallest of " + among;
      choice.advice = describe(shortage_of(input_, pool_.candidates), input_) +
                      describe_shortage(input_, winner.candidate, choice.memory.by_part);
    }
    choice.candidates = std::move(pool_.candidates);
    choice.evaluated = evaluator_.evaluated();
    return choice;
  }

  const ModelSpec& model_;
  const Mesh& mesh_;
  const PlannerInput& input_;
  const Machine& machine_;
  int blocks_ = 0;
  bool rebuilds_ = false;             // selective recompute saves memory
  bool products_ = false;             // a recomputed block may keep the result of a product
  Update update_ = Update::end;       // of the plans to try
  bool on_host_ = false;              // of the plans to try: updates run on the host
  double without_moved_updates_ = 0;  // seconds of a step, where overlapped updates made it faster
  double fastest_ = 0;                // seconds of the fastest plan that fits
  std::vector<Pipeline> pipelines_;   // to choose from
  size_t pipeline_ = 0;               // of the plans to try: which of these
  const UnitsByHand by_hand_;
  Evaluator evaluator_;
  Pool pool_;
};

}  // namespace

bool lasting_bytes_exceed_memory(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input) {
  if (input.budget <= 0 || input.nvme || mesh[Axis::pp] > 1 || mesh[Axis::dp_replicate] > 1) return false;
  const auto by_hand = [](const std::optional<Tier>& tier) { return tier.value_or(Tier::device) != Tier::device; };
  if (by_hand(input.parameters) || by_hand(input.gradients) || by_hand(input.states_tier) || by_hand(input.idle) ||
      by_hand(input.update_on))
    return false;  // room that no budget names may be meant
  Plan plan;
  plan.mesh = mesh, plan.local_world = input.local_world;
  plan.global_batch = input.global_batch, plan.micro_batch = input.micro_batch;
  static_cast<Formats&>(plan) = input;
  plan.experts = input.experts, plan.shared_base = input.shared_base;
  const bool whole_is_asked_for = input.strategy == Strategy::no_shard;
  plan.units.resize(model.units.size(), {.strategy = whole_is_asked_for ? Strategy::no_shard : Strategy::full_shard});
  const StatesOf states = states_of(plan.states);
  int64_t bytes = 0;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitLayout layout = plan.layout(model.units[u], static_cast<int>(u));
    bytes +=
        shard_bytes(layout, plan.states.masters) + (input.experts - 1) * plan.inactive_bytes(layout) +
        (input.experts - input.teachers) * state_layout(model.units[u], layout, plan.held(layout, 0), states).bytes;
    if (!input.may_update_in_backward) bytes += plan.gradient_bytes(layout);
  }
  return bytes > input.budget + std::max<int64_t>(0, input.host_budget);
}

Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& by_hand, const Machine& machine) {
  const PlannerInput input =
      placed(reconciled(by_hand, static_cast<int>(std::ranges::count_if(model.units, is_block))));
  return Search(model, mesh, input, machine).run();
}

// What a search without the user's settings would find.

namespace {

/// The planner keeps settings of the user; it warns if its own choice would be faster by more than this share.
constexpr double kMinReportedGain = 0.02;

}  // namespace

bool set_by_hand(const PlannerInput& input) { return static_cast<const Choices&>(input) != Choices{}; }

std::string slower_by_hand(const ModelSpec& model, const Mesh& mesh, PlannerInput input, const Machine& machine,
                           double seconds) {
  static_cast<Choices&>(input) = {}, input.thrifty = false;
  const Choice free = choose(model, mesh, input, machine);
  if (!free.fits || free.seconds >= seconds * (1 - kMinReportedGain)) return {};
  const auto [would, takes] = format_distinct_seconds(free.seconds, seconds);
  return "a step of this plan, with its keys set by hand, takes " + takes + "; \"" + free.plan.summary() +
         "\" would take " + would + " and fits (leave plan.* on auto for it)";
}

PlannerInput reconciled(PlannerInput input, int blocks) {
  if (input.recompute_every > 0) input.recompute_units = (blocks + input.recompute_every - 1) / input.recompute_every;
  if (!input.activations || !input.recompute_units) return input;
  const bool recompute = input.activations->graph == Graph::recompute;
  const std::string recomputed = *input.recompute_units >= blocks ? "all" : std::to_string(*input.recompute_units);
  if (recompute != (*input.recompute_units > 0))
    throw UserError(Exit::usage, "plan.recompute",
                    recomputed + " blocks with plan.activations = \"" + std::string(name(*input.activations)) + "\"",
                    "leave one of the two on auto");
  if (!recompute) input.recompute_units.reset();
  return input;
}

PlannerInput placed(PlannerInput input) {
  if (input.update_on != Tier::host) return input;
  for (std::optional<Tier>* tier : {&input.parameters, &input.gradients, &input.states_tier})
    if (!*tier) *tier = Tier::host;
  Plan plan;
  plan.units.push_back({.parameters = *input.parameters,
                        .gradients = *input.gradients,
                        .states = *input.states_tier,
                        .update_on = Tier::host});
  plan.check_updates("plan.");
  return input;
}

}  // namespace tessera::plan
