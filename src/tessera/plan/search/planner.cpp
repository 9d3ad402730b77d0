#include "tessera/plan/search/planner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/saved_bytes.h"
#include "tessera/plan/search/by_hand.h"
#include "tessera/plan/search/planner_messages.h"
#include "tessera/plan/search/search_space.h"
#include "tessera/plan/unit_keys.h"

namespace tessera::plan {

namespace {

/// Bytes of the arenas that a run makes.
struct Arenas {
  int64_t device = 0, host = 0;
  void cover(const Schedule& schedule) {
    device = std::max(device, schedule.arena), host = std::max(host, schedule.host_arena);
  }
  bool operator==(const Arenas&) const = default;
};

class Search {
 public:
  Search(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Machine& machine)
      : model_(model), mesh_(mesh), input_(input), machine_(machine), by_hand_(input.units, model, input.expert_names) {
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
    for (const Plan& step : steps_of(sites)) check_sites(model, step);
    if (mesh[Axis::pp] > 1) pipelines_ = pipelines(model, mesh, input, machine);
  }

  Choice run() {
    const bool whole = mesh_.shard_size() == 1;
    std::vector<Strategy> strategies = {Strategy::shard_grad_op, Strategy::full_shard};
    if (whole) strategies = {Strategy::full_shard};
    const bool alike = !by_hand_.any_of_one_expert();  // else buffers stay those that each expert's strategy has
    if (mesh_[Axis::dp_replicate] > 1 && alike) strategies.push_back(Strategy::two_level);
    if (input_.strategy) strategies = {*input_.strategy};
    // Depth 0 needs fewer slots; depth 2 is only tried on the best plan.
    const std::vector<int> depths = input_.prefetch ? std::vector{*input_.prefetch} : std::vector{1, 0};
    std::vector<Update> whens = {input_.update.value_or(Update::end)};
    if (!input_.update && input_.may_update_in_backward && alike) whens.push_back(Update::in_backward);
    const auto search = [&](Update when, bool on_host) {
      update_ = when, on_host_ = on_host;
      for (const Tiers& tiers : tier_choices(input_))
        for (Strategy strategy : strategies)
          for (int depth : depths)
            if (depth > 0 || !whole || tiers != kOnDevice || input_.prefetch)
              if ((!input_.first_that_fits || !best_) && (!on_host || tiers == kOnHost)) level(tiers, strategy, depth);
    };
    for (const Update when : whens) search(when, false);
    if (!best_ || input_.first_that_fits) return finish();
    spend();
    const double at_end = best_->candidate.seconds;
    move_updates();
    if (input_.update || !has_offloaded_buffers(best_->candidate.plan)) return finish();
    // The best plan with updates at the end need not be the best with overlapped updates, which need slots earlier and
    // other tiers. So the whole search is repeated with them.
    Evaluated before = *std::exchange(best_, std::nullopt);
    search(Update::just_in_time, false);
    if (free_to_move()) search(Update::just_in_time, true);
    if (best_) spend();
    if (best_ && best_->candidate.seconds < before.candidate.seconds * (1 - 1e-9))
      update_gain_ = describe_gain(best_->candidate, at_end);
    else
      best_ = std::move(before);
    return finish();
  }

 private:
  struct Evaluated {
    Candidate candidate;
    MemoryCurve memory;
  };

  /// `rest`: policy of the other blocks, keep or rebuild.
  Plan plan_of(const Tiers& tiers, Strategy strategy, int prefetch, const Saving& saving, int saving_blocks,
               Policy rest = Policy::keep) const {
    Plan plan;
    plan.mesh = mesh_;
    plan.global_batch = input_.global_batch;
    plan.micro_batch = input_.micro_batch;
    plan.prefetch = prefetch;
    plan.update = update_, plan.update_threads = input_.update_threads;
    static_cast<Formats&>(plan) = input_;
    plan.experts = input_.experts;
    plan.idle = input_.idle.value_or(Tier::device);
    if (!pipelines_.empty()) plan.pipeline = pipelines_.front();
    // The first blocks recompute or offload, because their activations live longest.
    for (const auto& unit : model_.units) {
      UnitPlan choice;
      choice.strategy = strategy;
      choice.reduce_once = input_.reduce_once.value_or(false);
      choice.parameters = tiers.parameters, choice.gradients = tiers.gradients, choice.states = tiers.states;
      choice.update_on = input_.update_on.value_or(on_host_ ? Tier::host : Tier::device);
      choice.offload_to = input_.offload_to.value_or(Tier::host);
      if (is_block(unit) && saving_blocks > 0) {
        --saving_blocks;
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

  /// Peak over all schedules of a run. Just-in-time updates also run alone before a sample or a checkpoint, and the
  /// first step has none: these arenas have another layout and may be larger. They are not compiled if the step alone
  /// is over the budget. `least`: arenas that other experts' steps need.
  MemoryCurve whole_run(const Plan& plan, const RankGroup& group, const Arenas& least) const {
    Arenas arenas = least;
    arenas.cover(group.schedule);
    MemoryCurve curve = memory_curve(model_, plan, group.schedule, group.rank, arenas.device, arenas.host);
    const bool over = (input_.budget > 0 && curve.peak > input_.budget) ||
                      (input_.host_budget > 0 && curve.host.total() > input_.host_budget);
    if (plan.update != Update::just_in_time || over) return curve;
    const Arenas step = arenas;
    arenas.cover(compile_updates(model_, plan, group.rank));
    arenas.cover(compile_train(model_, plan, group.rank, /*pending=*/false));
    if (arenas == step) return curve;
    return memory_curve(model_, plan, group.schedule, group.rank, arenas.device, arenas.host);
  }

  /// The steps of the plan's experts: one where all have the same.
  std::vector<Plan> steps_of(const Plan& plan) const {
    if (!by_hand_.any_of_one_expert()) return {plan};
    const Plan whole = by_hand_.with_experts(plan);
    std::vector<Plan> steps;
    for (int e = 0; e < plan.experts; ++e) steps.push_back(whole.as_of(e));
    return steps;
  }

  /// Memory of the plan, and its time if it fits: of the expert that needs most, and the mean of all.
  Evaluated evaluate(Plan plan) {
    Evaluated e;
    by_hand_.apply(plan.units);
    // Host updates need all of their buffers on the host; otherwise the device updates the unit.
    for (UnitPlan& unit : plan.units)
      if (unit.parameters != Tier::host || unit.gradients != Tier::host || unit.states != Tier::host)
        unit.update_on = Tier::device;
    e.candidate.plan = std::move(plan);
    Candidate& c = e.candidate;
    const std::vector<Plan> steps = steps_of(c.plan);
    std::vector<std::vector<RankGroup>> groups;
    Arenas arenas;
    for (const Plan& step : steps)
      for (const RankGroup& group : groups.emplace_back(rank_groups(model_, step)))
        if (steps.size() > 1) arenas.cover(group.schedule);
    for (size_t s = 0; s < steps.size(); ++s)
      for (const RankGroup& group : groups[s]) {
        MemoryCurve curve = whole_run(steps[s], group, arenas);
        c.host = std::max(c.host, curve.host.total());
        if (curve.peak > e.memory.peak) e.memory = std::move(curve);
      }
    c.peak = e.memory.peak;
    const bool device = input_.budget <= 0 || c.peak <= input_.budget;
    const bool host = c.host == 0 || input_.host_budget <= 0 || c.host <= input_.host_budget;
    c.fits = device && host;
    c.why = !device             ? format_bytes(c.peak - input_.budget) + " over the budget"
            : !host             ? format_bytes(c.host - input_.host_budget) + " over the host's budget"
            : input_.budget > 0 ? "fits with " + format_bytes(input_.budget - c.peak) + " to spare"
                                : "fits";
    std::vector<double> seconds;
    for (size_t s = 0; s < steps.size() && c.fits; ++s)
      seconds.push_back(predict(model_, steps[s], machine_, std::move(groups[s])).step.total);
    if (c.fits) c.seconds = seconds.size() == 1 ? seconds[0] : mean_seconds(seconds, input_.expert_shares);
    return e;
  }

  /// If only host memory is too small: the same plan with enough units' buffers moved back to the device.
  Evaluated within_host_budget(Evaluated e) {
    if (e.candidate.fits || over_host(input_, e.candidate) <= 0 || over_device(input_, e.candidate) > 0) return e;
    Evaluated less = unload_host(e.candidate);
    return less.candidate.fits ? less : e;
  }
  Evaluated within_host_budget(Plan plan) { return within_host_budget(evaluate(std::move(plan))); }

  /// The same plan with units' buffers moved back to the device until the host budget holds. For units updated on the
  /// host, all three buffers of the first units first: their gradients are complete last, so the next step waits for
  /// their updates.
  Evaluated unload_host(const Candidate& from) {
    Plan plan = from.plan;
    int64_t over = over_host(input_, from);
    const StatesOf states = states_of(plan.states);
    const auto move_to_device = [&](size_t u, Tier UnitPlan::*part) {
      if (plan.units[u].*part != Tier::host || input_.*user_tier_of(part) || by_hand_.sets(u, key_of(part))) return;
      const UnitLayout layout = plan.layout(model_.units[u], static_cast<int>(u));
      over -= part == &UnitPlan::gradients ? plan.gradient_bytes(layout)
              : part == &UnitPlan::parameters
                  ? shard_bytes(layout, plan.states.masters)
                  : state_layout(model_.units[u], layout, plan.held(layout, 0), states).bytes;
      plan.units[u].*part = Tier::device;
    };
    for (size_t u = 0; u < plan.units.size() && over > 0; ++u)
      if (plan.units[u].update_on == Tier::host)
        for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::states, &UnitPlan::parameters})
          move_to_device(u, part);
    for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::states, &UnitPlan::parameters})
      for (size_t u = plan.units.size(); u-- > 0 && over > 0;) move_to_device(u, part);
    return evaluate(std::move(plan));
  }

  /// `evaluated(n)` of the smallest n that fits; `found` is the result for `count`, which fits.
  template <typename Make>
  Evaluated fewest(int count, Evaluated found, const Make& evaluated) {
    for (int over = 0; count - over > 1;) {
      const int middle = (count + over) / 2;
      Evaluated tried = evaluated(middle);
      (tried.candidate.fits ? count : over) = middle;
      if (tried.candidate.fits) found = std::move(tried);
    }
    return found;
  }

  /// `change(plan, n)` of the smallest n up to `limit` that fits; empty if none does.
  template <typename Change>
  std::optional<Evaluated> least(const Candidate& from, size_t limit, const Change& change) {
    const auto with = [&](int n) {
      Plan plan = from.plan;
      change(plan, static_cast<size_t>(n));
      return evaluate(std::move(plan));
    };
    if (limit == 0) return std::nullopt;
    Evaluated all = with(static_cast<int>(limit));
    if (!all.candidate.fits) return std::nullopt;
    return fewest(static_cast<int>(limit), std::move(all), with);
  }

  /// The same plan with the smallest number of activations or of states on disk that fits the host budget, whichever is
  /// faster. Empty if neither fits.
  std::optional<Evaluated> spill_to_disk(const Candidate& from) {
    std::vector<size_t> activations, states;
    for (size_t u = 0; u < from.plan.units.size(); ++u) {
      if (offloaded_bytes(model_, from.plan, static_cast<int>(u)) > 0) activations.push_back(u);
      if (from.plan.units[u].states == Tier::host && from.plan.units[u].update_on == Tier::device) states.push_back(u);
    }
    if (input_.offload_to) activations.clear();
    if (input_.states_tier) states.clear();
    std::optional<Evaluated> best = least(from, activations.size(), [&](Plan& plan, size_t n) {
      // the first units reload last
      for (size_t i = 0; i < n; ++i) plan.units[activations[i]].offload_to = Tier::nvme;
    });
    std::optional<Evaluated> other = least(from, states.size(), [&](Plan& plan, size_t n) {
      for (size_t i = 0; i < states.size(); ++i)  // evenly spread, so that disk transfers overlap the units between
        if ((i + 1) * n / states.size() > i * n / states.size()) plan.units[states[i]].states = Tier::nvme;
    });
    return other && (!best || is_better(other->candidate, best->candidate)) ? other : best;
  }

  static std::optional<Tier> Choices::*user_tier_of(Tier UnitPlan::*part) {
    return part == &UnitPlan::gradients    ? &Choices::gradients
           : part == &UnitPlan::parameters ? &Choices::parameters
                                           : &Choices::states_tier;
  }

  static std::string_view key_of(Tier UnitPlan::*part) {
    return part == &UnitPlan::gradients ? "gradients" : part == &UnitPlan::parameters ? "parameters" : "states";
  }

  /// Faster; at equal time, the one with less host memory.
  static bool is_better(const Candidate& a, const Candidate& b) {
    if (a.seconds < b.seconds * (1 - 1e-9)) return true;
    return a.seconds <= b.seconds * (1 + 1e-9) && a.host < b.host;
  }

  bool consider(Evaluated e) {
    e = within_host_budget(std::move(e));
    if (!e.candidate.fits && over_host(input_, e.candidate) > 0 && over_device(input_, e.candidate) <= 0 && input_.nvme)
      if (std::optional<Evaluated> onward = spill_to_disk(e.candidate)) e = std::move(*onward);
    const bool better = e.candidate.fits && (!best_ || is_better(e.candidate, best_->candidate));
    const auto excess = [this](const Evaluated& x) {
      return std::pair(
          std::max<int64_t>(0, over_device(input_, x.candidate)) + std::max<int64_t>(0, over_host(input_, x.candidate)),
          x.candidate.peak);
    };
    if (!smallest_ || excess(e) < excess(*smallest_)) smallest_ = e;
    if (better) best_ = e;
    e.candidate.plan = by_hand_.with_experts(std::move(e.candidate.plan));
    candidates_.push_back(std::move(e.candidate));
    return better;
  }

  /// Lower bound of the step time of these plans: saving memory only adds work.
  double fastest(const Tiers& tiers, Strategy strategy, int prefetch) const {
    Plan plan = plan_of(tiers, strategy, prefetch, Saving{}, 0);
    by_hand_.apply(plan.units);
    std::vector<double> seconds;
    for (const Plan& step : steps_of(plan)) seconds.push_back(predict(model_, step, machine_).step.total);
    return mean_seconds(seconds, input_.expert_shares);
  }

  /// Tries all memory savings for one choice of tiers and strategy.
  void level(const Tiers& tiers, Strategy strategy, int prefetch) {
    const int by_hand = input_.recompute_units ? std::min(*input_.recompute_units, blocks_) : -1;
    const bool may_save = input_.activations != Policy::keep;
    if (by_hand <= 0 && (!input_.activations || *input_.activations == Policy::keep)) {
      Evaluated all = evaluate(plan_of(tiers, strategy, prefetch, Saving{}, 0));
      const bool fits = all.candidate.fits;
      consider(std::move(all));
      if (fits || !may_save) return;  // saving memory only costs time
    }
    if (!may_save || (best_ && fastest(tiers, strategy, prefetch) > best_->candidate.seconds * (1 + 1e-9))) return;
    // Selective recompute costs little: if it does not fit alone, the blocks without a stronger saving use it.
    Policy rest = Policy::keep;
    for (const Saving& saving : savings(input_)) {
      if (input_.first_that_fits && best_) return;
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
        Evaluated asked = evaluate(plan_of(tiers, strategy, prefetch, saving, blocks));
        const bool fits = asked.candidate.fits;
        consider(std::move(asked));
        if (!fits && rebuilds_ && blocks < blocks_)
          consider(evaluate(plan_of(tiers, strategy, prefetch, saving, blocks, Policy::rebuild)));
        continue;
      }
      Evaluated most = within_host_budget(plan_of(tiers, strategy, prefetch, saving, blocks_, rest));
      if (!most.candidate.fits) {
        consider(std::move(most));
        if (saving.activations == Policy::rebuild) rest = Policy::rebuild;
        continue;
      }
      consider(fewest(blocks_, std::move(most), [&](int blocks) {
        return within_host_budget(plan_of(tiers, strategy, prefetch, saving, blocks, rest));
      }));
    }
  }

  /// The largest n for which `change(plan, n)` of the best plan fits, by bisection; n is a number of units.
  template <typename Change>
  void most(int limit, const Change& change) {
    const Plan from = best_->candidate.plan;
    std::optional<Evaluated> found;
    int fits = 0, over = limit + 1;
    for (int tried = limit; over - fits > 1; tried = (fits + over) / 2) {  // all of them first
      Plan plan = from;
      change(plan, tried);
      Evaluated e = evaluate(std::move(plan));
      if (e.candidate.fits)
        found = std::move(e), fits = tried;
      else
        over = tried;
    }
    if (found) consider(std::move(*found));
  }

  /// Moves as many units' buffers as fit from disk or host towards the device, most frequently moved buffers first.
  void promote_buffers() {
    for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::parameters, &UnitPlan::states})
      for (const auto& [from, to] :
           {std::pair(Tier::nvme, Tier::host), {Tier::nvme, Tier::device}, {Tier::host, Tier::device}}) {
        if (input_.*user_tier_of(part)) continue;
        const auto& units = best_->candidate.plan.units;
        const auto away = std::count_if(units.begin(), units.end(), [&](const UnitPlan& u) { return u.*part == from; });
        if (away > 0)
          most(static_cast<int>(away), [part, from = from, to = to](Plan& plan, int n) {
            for (size_t u = 0; u < plan.units.size() && n > 0; ++u)
              if (plan.units[u].*part == from) plan.units[u].*part = to, --n;
          });
      }
  }

  /// Moves as many units' offloaded activations as fit from disk to host memory, last units first, because their
  /// backward comes soonest.
  void promote_activations() {
    if (input_.offload_to) return;
    const auto& units = best_->candidate.plan.units;
    const auto away =
        std::count_if(units.begin(), units.end(), [](const UnitPlan& u) { return u.offload_to == Tier::nvme; });
    if (away > 0)
      most(static_cast<int>(away), [](Plan& plan, int n) {
        for (size_t u = plan.units.size(); u-- > 0 && n > 0;)
          if (plan.units[u].offload_to == Tier::nvme) plan.units[u].offload_to = Tier::host, --n;
      });
  }

  /// Replaces recompute of units by offload: for as many units as fit, and for fewer, in case the link is too slow.
  void offload_instead() {
    if (input_.host_budget <= 0 || input_.recompute_units || input_.activations) return;
    const auto& units = best_->candidate.plan.units;
    const auto recomputing =
        std::count_if(units.begin(), units.end(), [](const UnitPlan& u) { return u.activations == Policy::recompute; });
    const Plan from = best_->candidate.plan;
    const auto change = [](Plan& plan, int n) {
      for (UnitPlan& unit : plan.units)
        if (unit.activations == Policy::recompute && n-- > 0) unit.activations = Policy::offload, unit.sites.clear();
    };
    if (recomputing > 0) most(static_cast<int>(recomputing), change);
    for (auto n = recomputing / 2; n > 0; n /= 2) {
      Plan plan = from;
      change(plan, static_cast<int>(n));
      consider(evaluate(std::move(plan)));
    }
  }

  /// Alternates units that offload with units that do not, so that each copy overlaps the compute of several units.
  /// `last`: so many units at the end, where the peak is, stay unchanged.
  void alternate_offloading(size_t last) {
    Plan plan = best_->candidate.plan;
    std::map<std::string, std::vector<size_t>> kinds;
    for (size_t u = 0; u < plan.units.size(); ++u)
      if (is_block(model_.units[u])) kinds[model_.units[u].kind].push_back(u);
    for (auto& [kind, units] : kinds) {
      for (size_t i = 0; i < last && !units.empty() && !plan.units[units.back()].offloads(); ++i) units.pop_back();
      std::vector<UnitPlan> away, near;
      for (const size_t u : units) (plan.units[u].offloads() ? away : near).push_back(plan.units[u]);
      for (size_t i = 0, sent = 0; i < units.size(); ++i) {
        const bool offloads_next = (i + 1) * away.size() / units.size() > sent;
        plan.units[units[i]] = offloads_next ? away[sent] : near[i - sent];
        sent += offloads_next;
      }
    }
    if (plan != best_->candidate.plan) consider(evaluate(std::move(plan)));
  }

  /// Keeps the results of these sites in as many recomputed units as fit.
  void keep_results(Sites which) {
    const auto lacking = [&](const Plan& plan, size_t u) {
      std::vector<std::string> sites;
      if (plan.units[u].activations == Policy::recompute) sites = kept_sites(model_.units[u], machine_, which);
      std::erase_if(sites, [&](const auto& site) { return plan.units[u].policy(site) != Policy::recompute; });
      return sites;
    };
    int units = 0;
    for (size_t u = 0; u < model_.units.size(); ++u) units += !lacking(best_->candidate.plan, u).empty();
    if (units > 0)
      most(units, [&](Plan& plan, int n) {
        for (size_t u = 0; u < plan.units.size() && n > 0; ++u) {
          const std::vector<std::string> sites = lacking(plan, u);
          for (const std::string& site : sites) plan.units[u].sites[site] = Policy::keep;
          n -= !sites.empty();
        }
      });
  }

  /// Spends the memory that the best plan leaves.
  void spend() {
    if (!input_.recompute_units && !input_.activations)
      for (const Sites sites : {Sites::long_attention, Sites::long_attention_and_ffn, Sites::all}) keep_results(sites);
    double before;
    do {  // repeated while it helps: what leaves the host makes room for what is on disk
      before = best_->candidate.seconds;
      promote_buffers();
      promote_activations();
    } while (best_->candidate.seconds < before);
    offload_instead();
    if (!input_.recompute_units && !input_.activations)
      for (const size_t last : {8, 4, 2, 0}) alternate_offloading(last);
    if (!input_.strategy && mesh_.shard_size() > 1) {
      int released = 0;
      for (const UnitPlan& unit : best_->candidate.plan.units) released += unit.strategy == Strategy::full_shard;
      if (released > 0)
        most(released, [](Plan& plan, int n) {  // last units first: they stay gathered for the shortest time
          for (size_t u = plan.units.size(); u-- > 0 && n > 0;)
            if (plan.units[u].strategy == Strategy::full_shard) plan.units[u].strategy = Strategy::shard_grad_op, --n;
        });
    }
    if (!input_.activations) {
      const auto& units = best_->candidate.plan.units;
      const auto selective = [](const UnitPlan& unit) { return unit.activations == Policy::rebuild; };
      if (const auto count = std::count_if(units.begin(), units.end(), selective); count > 0)
        most(static_cast<int>(count), [&](Plan& plan, int n) {  // last units first
          for (size_t u = plan.units.size(); u-- > 0 && n > 0;)
            if (selective(plan.units[u])) plan.units[u].activations = Policy::keep, --n;
        });
    }
    for (size_t i = 1; i < pipelines_.size(); ++i) {
      Plan plan = best_->candidate.plan;
      plan.pipeline = pipelines_[i];
      consider(evaluate(std::move(plan)));
    }
    if (!input_.prefetch && (mesh_.shard_size() > 1 || best_->candidate.host > 0))
      for (int depth : {2, 1}) {
        Plan plan = best_->candidate.plan;
        if (std::exchange(plan.prefetch, depth) != depth) consider(evaluate(std::move(plan)));
      }
  }

  static bool has_offloaded_buffers(const Plan& plan) {
    return std::any_of(plan.units.begin(), plan.units.end(), [](const UnitPlan& u) {
      return u.parameters != Tier::device || u.gradients != Tier::device || u.states != Tier::device;
    });
  }

  /// Whether updates and their buffers may be placed on the host.
  bool free_to_move() const {
    const bool all_by_hand = input_.parameters && input_.gradients && input_.states_tier;
    return !input_.update_on && (input_.host_budget > 0 || all_by_hand) &&
           input_.parameters.value_or(Tier::host) == Tier::host &&
           input_.gradients.value_or(Tier::host) == Tier::host && input_.states_tier.value_or(Tier::host) == Tier::host;
  }

  /// Tries the best plan with overlapped updates: just in time, or on the host. There is only something to gain if the
  /// buffers of updates are offloaded.
  void move_updates() {
    const Candidate before = best_->candidate;
    if (!has_offloaded_buffers(before.plan)) return;
    std::vector<Update> whens = {before.plan.update};
    if (!input_.update) whens.push_back(Update::just_in_time);
    for (const bool on_host : {false, true})
      for (const Update when : whens) {
        if ((on_host && !free_to_move()) || (!on_host && when == before.plan.update)) continue;
        Plan plan = before.plan;
        plan.update = when;
        for (UnitPlan& unit : plan.units)
          if (on_host && unit.states == Tier::host) unit.parameters = unit.gradients = unit.update_on = Tier::host;
        if (plan != before.plan) consider(evaluate(std::move(plan)));
      }
    if (best_->candidate.plan != before.plan) update_gain_ = describe_gain(best_->candidate, before.seconds);
  }

  Choice finish() {
    Choice choice;
    choice.fits = best_.has_value();
    const Evaluated& winner = best_ ? *best_ : *smallest_;
    choice.plan = by_hand_.with_experts(winner.candidate.plan);
    choice.seconds = winner.candidate.seconds;
    choice.memory = winner.memory;
    const std::string among =
        std::to_string(candidates_.size()) + (candidates_.size() == 1 ? " candidate" : " candidates");
    if (best_) {
      choice.why = "least predicted time of " + among + ", peak " + format_bytes(winner.candidate.peak) + " at " +
                   choice.memory.at_name + update_gain_;
    } else {
      choice.why = "nothing fits; this is the smallest of " + among;
      choice.advice = describe_shortage(input_, winner.candidate, choice.memory.by_part);
    }
    choice.candidates = std::move(candidates_);
    return choice;
  }

  const ModelSpec& model_;
  const Mesh& mesh_;
  const PlannerInput& input_;
  const Machine& machine_;
  const UnitsByHand by_hand_;
  int blocks_ = 0;
  bool rebuilds_ = false;            // selective recompute saves memory
  bool products_ = false;            // a recomputed block may keep the result of a product
  Update update_ = Update::end;      // of the plans to try
  bool on_host_ = false;             // of the plans to try: updates run on the host
  std::string update_gain_;          // describes the time that overlapped updates save
  std::vector<Pipeline> pipelines_;  // to choose from; all plans are tried with the first
  std::optional<Evaluated> best_, smallest_;
  std::vector<Candidate> candidates_;
};

}  // namespace

bool is_block(const UnitSpec& unit) { return unit.kind != "stem" && unit.kind != "head"; }

Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& by_hand, const Machine& machine) {
  const PlannerInput input =
      placed(reconciled(by_hand, static_cast<int>(std::ranges::count_if(model.units, is_block))));
  return Search(model, mesh, input, machine).run();
}

}  // namespace tessera::plan
