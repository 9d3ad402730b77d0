#include "tessera/plan/planner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/units.h"

namespace tessera::plan {

namespace {

/// A choice by hand is kept; when the planner's own would be faster by more than this share, it says so.
constexpr double kWorthSaying = 0.02;

/// Which attention sites of a recomputed block keep what they made: all, or those that would take long to compute
/// again. Keys of a text are few: its attention costs the bytes of self-attention and next to none of its time.
enum class Sites { all, dear };
/// A site is dear that has at least this share of the FLOPs of the block's largest.
constexpr double kDear = 0.125;

/// A way for a block to save less than everything.
struct Saving {
  Policy activations;
  Policy attention;  // of a recomputed block
  Policy boundary;
  Sites sites = Sites::all;
  bool host() const { return leaves_device(activations) || leaves_device(attention) || leaves_device(boundary); }
};
constexpr Saving kSavings[] = {{Policy::rebuild, Policy::keep, Policy::keep},
                               {Policy::recompute, Policy::keep, Policy::keep},
                               {Policy::recompute, Policy::keep, Policy::keep, Sites::dear},
                               {Policy::recompute, Policy::offload, Policy::keep},
                               {Policy::recompute, Policy::offload, Policy::keep, Sites::dear},
                               {Policy::recompute, Policy::keep, Policy::offload, Sites::dear},
                               {Policy::recompute, Policy::offload, Policy::offload},
                               {Policy::recompute, Policy::offload, Policy::offload, Sites::dear},
                               {Policy::recompute, Policy::recompute, Policy::keep},
                               {Policy::recompute, Policy::recompute, Policy::offload},
                               {Policy::offload, Policy::offload, Policy::offload}};

struct Tiers {
  Tier parameters, gradients, states;
  bool operator==(const Tiers&) const = default;
};
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

/// The pipelines to choose from, what was set by hand first and alone.
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

class Search {
 public:
  Search(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Machine& machine)
      : model_(model), mesh_(mesh), input_(input), machine_(machine) {
    for (const auto& unit : model.units) {
      blocks_ += may_save_less(unit);
      rebuilds_ |= may_save_less(unit) && unit.cost.lean && unit.cost.lean->saved < unit.cost.saved;
    }
    if (mesh[Axis::pp] > 1) pipelines_ = pipelines(model, mesh, input, machine);
  }

  Choice run() {
    const bool whole = mesh_.shard_size() == 1;
    std::vector<Strategy> strategies = {Strategy::shard_grad_op, Strategy::full_shard};
    if (whole) strategies = {Strategy::full_shard};
    if (mesh_[Axis::dp_replicate] > 1) strategies.push_back(Strategy::two_level);
    if (input_.strategy) strategies = {*input_.strategy};
    // Without prefetch fewer slots are taken; a depth of two is tried on the best.
    const std::vector<int> depths = input_.prefetch ? std::vector{*input_.prefetch} : std::vector{1, 0};
    std::vector<Update> whens = {input_.update.value_or(Update::end)};
    if (!input_.update && input_.may_update_in_backward) whens.push_back(Update::in_backward);
    for (const Update when : whens) {
      update_ = when;
      for (const Tiers& tiers : tier_choices())
        for (Strategy strategy : strategies)
          for (int depth : depths)
            if (depth > 0 || !whole || tiers != kTiers[0] || input_.prefetch)
              if (!input_.first_that_fits || !best_) level(tiers, strategy, depth);
    }
    if (best_ && !input_.first_that_fits) {
      spend();
      move_updates();
    }
    return finish();
  }

 private:
  struct Evaluated {
    Candidate candidate;
    MemoryCurve memory;
  };

  std::vector<Tiers> tier_choices() const {
    std::vector<Tiers> result;
    for (Tiers tiers : kTiers) {
      const bool automatic = !input_.parameters || !input_.gradients || !input_.states_tier;
      if (automatic && input_.host_budget <= 0 && tiers != kTiers[0]) continue;
      const bool disk = tiers.parameters == Tier::nvme || tiers.gradients == Tier::nvme || tiers.states == Tier::nvme;
      if (disk && !input_.nvme) continue;  // by hand it is allowed, and the store asks for a folder
      tiers = {input_.parameters.value_or(tiers.parameters), input_.gradients.value_or(tiers.gradients),
               input_.states_tier.value_or(tiers.states)};
      if (std::find(result.begin(), result.end(), tiers) == result.end()) result.push_back(tiers);
    }
    return result;
  }

  std::vector<std::string> attention_sites(const UnitSpec& unit, Sites which) const {
    const auto work = machine_.work.find(unit.kind);
    const auto flops = [&](const std::string& site) {  // where nothing is known of it every site is dear
      if (work == machine_.work.end()) return 0.0;
      const auto found = work->second.attention.find(site);
      return found == work->second.attention.end() ? 0.0 : found->second;
    };
    double most = 0;
    for (const auto& [site, bytes] : unit.cost.attention) most = std::max(most, flops(site));
    std::vector<std::string> sites;
    for (const auto& [site, bytes] : unit.cost.attention)
      if (which == Sites::all || flops(site) >= kDear * most) sites.push_back(site);
    return sites;
  }

  /// `rest`: what the other blocks do, keep or rebuild.
  Plan plan_of(const Tiers& tiers, Strategy strategy, int prefetch, const Saving& saving, int saving_blocks,
               Policy rest = Policy::keep) const {
    Plan plan;
    plan.mesh = mesh_;
    plan.global_batch = input_.global_batch;
    plan.micro_batch = input_.micro_batch;
    plan.prefetch = prefetch;
    plan.update = update_, plan.update_threads = input_.update_threads;
    plan.states = input_.states;
    plan.param_dtype = input_.param_dtype;
    plan.experts = input_.experts;
    plan.idle = input_.idle;
    plan.compute = input_.compute, plan.reduce = input_.reduce, plan.grad = input_.grad;
    if (!pipelines_.empty()) plan.pipeline = pipelines_.front();
    // The first blocks save less: they are needed last in backward, so what they would keep lives longest.
    for (const auto& unit : model_.units) {
      UnitPlan choice;
      choice.strategy = strategy;
      choice.parameters = tiers.parameters, choice.gradients = tiers.gradients, choice.states = tiers.states;
      choice.update_on = input_.update_on.value_or(Tier::device);
      choice.offload_to = input_.offload_to.value_or(Tier::host);
      if (may_save_less(unit) && saving_blocks > 0) {
        --saving_blocks;
        choice.activations = saving.activations;
        if (saving.boundary != saving.activations && saving.boundary != Policy::keep)
          choice.sites[std::string(kBoundary)] = saving.boundary;
        if (saving.activations == Policy::recompute && saving.attention != Policy::recompute)
          for (const std::string& site : attention_sites(unit, saving.sites)) choice.sites[site] = saving.attention;
      } else if (may_save_less(unit)) {
        choice.activations = rest;
      }
      plan.units.push_back(std::move(choice));
    }
    if (update_ == Update::in_backward && plan.accumulation() == 1 && !input_.gradients)
      for (UnitPlan& unit : plan.units)  // they are used up where they are made
        if (unit.update_on == Tier::device) unit.gradients = Tier::device;
    return plan;
  }

  /// Memory of the plan; its time only when it fits.
  Evaluated evaluate(Plan plan) {
    Evaluated e;
    // An update on the host works where all of its buffers rest: with one of them elsewhere the device does it.
    for (UnitPlan& unit : plan.units)
      if (unit.parameters != Tier::host || unit.gradients != Tier::host || unit.states != Tier::host)
        unit.update_on = Tier::device;
    e.candidate.plan = std::move(plan);
    Candidate& c = e.candidate;
    std::vector<RankGroup> groups = rank_groups(model_, c.plan);
    for (const RankGroup& group : groups) {
      Schedule pending;  // updates just in time run alone too, ahead of a sample or a checkpoint
      if (c.plan.update == Update::just_in_time) pending = compile_updates(model_, c.plan, group.rank);
      MemoryCurve curve =
          memory_curve(model_, c.plan, group.schedule, group.rank, std::max(pending.arena, group.schedule.arena),
                       std::max(pending.host_arena, group.schedule.host_arena));
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
    if (c.fits) c.seconds = predict(model_, c.plan, machine_, std::move(groups)).step.total;
    return e;
  }

  int64_t over_device(const Candidate& c) const { return input_.budget > 0 ? c.peak - input_.budget : 0; }
  int64_t over_host(const Candidate& c) const { return input_.host_budget > 0 ? c.host - input_.host_budget : 0; }

  /// The same plan with as many units' buffers back on the device as the host has too many.
  Evaluated less_on_the_host(const Candidate& from) {
    Plan plan = from.plan;
    int64_t over = over_host(from);
    const StatesOf states = adamw_states(plan.states);
    for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::states, &UnitPlan::parameters}) {
      if (input_.*by_hand_of(part)) continue;
      for (size_t u = plan.units.size(); u-- > 0 && over > 0;) {
        if (plan.units[u].*part != Tier::host) continue;
        const UnitLayout layout = plan.layout(model_.units[u], static_cast<int>(u));
        over -= part == &UnitPlan::gradients ? plan.gradient_bytes(layout)
                : part == &UnitPlan::parameters
                    ? shard_bytes(layout, plan.states.masters)
                    : state_layout(model_.units[u], layout, plan.held(layout, 0), states).bytes;
        plan.units[u].*part = Tier::device;
      }
    }
    return evaluate(std::move(plan));
  }

  /// The same plan with the activations of the fewest units on the disk, of the first, which need them last; nothing
  /// where that is not enough.
  std::optional<Evaluated> on_to_the_disk(const Candidate& from) {
    std::vector<size_t> leaving;
    for (size_t u = 0; u < from.plan.units.size(); ++u)
      if (offloaded_bytes(model_, from.plan, static_cast<int>(u)) > 0) leaving.push_back(u);
    const auto with = [&](size_t count) {
      Plan plan = from.plan;
      for (size_t i = 0; i < count; ++i) plan.units[leaving[i]].offload_to = Tier::nvme;
      return evaluate(std::move(plan));
    };
    if (leaving.empty()) return std::nullopt;
    Evaluated found = with(leaving.size());
    if (!found.candidate.fits) return std::nullopt;
    for (size_t fits = leaving.size(), over = 0; fits - over > 1;) {
      const size_t middle = (fits + over) / 2;
      Evaluated tried = with(middle);
      (tried.candidate.fits ? fits : over) = middle;
      if (tried.candidate.fits) found = std::move(tried);
    }
    return found;
  }

  static std::optional<Tier> PlannerInput::*by_hand_of(Tier UnitPlan::*part) {
    return part == &UnitPlan::gradients    ? &PlannerInput::gradients
           : part == &UnitPlan::parameters ? &PlannerInput::parameters
                                           : &PlannerInput::states_tier;
  }

  bool consider(Evaluated e) {
    if (!e.candidate.fits && over_host(e.candidate) > 0 && over_device(e.candidate) <= 0)
      if (Evaluated less = less_on_the_host(e.candidate); less.candidate.fits) e = std::move(less);
    if (!e.candidate.fits && over_host(e.candidate) > 0 && over_device(e.candidate) <= 0 && input_.nvme &&
        !input_.offload_to)
      if (std::optional<Evaluated> onward = on_to_the_disk(e.candidate)) e = std::move(*onward);
    const bool better = e.candidate.fits && (!best_ || e.candidate.seconds < best_->candidate.seconds * (1 - 1e-9));
    const auto excess = [this](const Evaluated& x) {
      return std::pair(std::max<int64_t>(0, over_device(x.candidate)) + std::max<int64_t>(0, over_host(x.candidate)),
                       x.candidate.peak);
    };
    if (!smallest_ || excess(e) < excess(*smallest_)) smallest_ = e;
    if (better) best_ = e;
    candidates_.push_back(std::move(e.candidate));
    return better;
  }

  /// The ways of saving less. What is lossy is tried where it was asked for by name, and there alone.
  std::vector<Saving> savings() const {
    if (!input_.activations || !is_lossy(*input_.activations)) return {std::begin(kSavings), std::end(kSavings)};
    return {{*input_.activations, *input_.activations, *input_.activations}};
  }

  /// All ways of saving less on one choice of tiers and strategy.
  void level(const Tiers& tiers, Strategy strategy, int prefetch) {
    const int by_hand = input_.recompute_units ? std::min(*input_.recompute_units, blocks_) : -1;
    const bool may_save = input_.activations != Policy::keep;
    if (by_hand <= 0 && (!input_.activations || *input_.activations == Policy::keep)) {
      Evaluated all = evaluate(plan_of(tiers, strategy, prefetch, kSavings[0], 0));
      const bool fits = all.candidate.fits;
      consider(std::move(all));
      if (fits || !may_save) return;  // saving less only costs time
    }
    if (!may_save) return;
    // To make norms and sums again costs little for what it saves: blocks that do no more do that, where all must save.
    Policy rest = Policy::keep;
    for (const Saving& saving : savings()) {
      if (input_.first_that_fits && best_) return;
      const bool asked_for = is_lossy(saving.activations) ||
                             (input_.activations == Policy::offload && saving.activations == Policy::offload) ||
                             (input_.boundary == Policy::offload && saving.boundary == Policy::offload &&
                              saving.attention != Policy::offload);
      if (saving.host() && input_.host_budget <= 0 && !asked_for) continue;
      if (input_.activations && saving.activations != *input_.activations) continue;
      if (saving.activations == Policy::rebuild ? !rebuilds_ && !input_.activations : by_hand == 0) continue;
      if (input_.boundary && saving.boundary != *input_.boundary) continue;
      // what is recomputed by hand is recomputed as said
      const Policy boundary = input_.boundary.value_or(Policy::keep);
      if (by_hand > 0 && (saving.attention != Policy::recompute || saving.boundary != boundary)) continue;
      if (by_hand > 0 || input_.activations) {
        const int blocks = by_hand > 0 ? by_hand : blocks_;
        Evaluated asked = evaluate(plan_of(tiers, strategy, prefetch, saving, blocks));
        const bool fits = asked.candidate.fits;
        consider(std::move(asked));
        if (!fits && rebuilds_ && blocks < blocks_)
          consider(evaluate(plan_of(tiers, strategy, prefetch, saving, blocks, Policy::rebuild)));
        continue;
      }
      Evaluated most = evaluate(plan_of(tiers, strategy, prefetch, saving, blocks_, rest));
      if (!most.candidate.fits) {
        consider(std::move(most));
        if (saving.activations == Policy::rebuild) rest = Policy::rebuild;
        continue;
      }
      int fits = blocks_, over = 0;  // the fewest blocks that fit
      while (fits - over > 1) {
        const int middle = (fits + over) / 2;
        Evaluated tried = evaluate(plan_of(tiers, strategy, prefetch, saving, middle, rest));
        (tried.candidate.fits ? fits : over) = middle;
        if (tried.candidate.fits) most = std::move(tried);
      }
      consider(std::move(most));
    }
  }

  /// The largest change of the best plan that fits, tried by halving; `change(plan, n)` changes n units.
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

  /// As many units' buffers as fit come back from the disk or the host, what is moved most often first.
  void bring_back() {
    for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::parameters, &UnitPlan::states})
      for (const auto& [from, to] :
           {std::pair(Tier::nvme, Tier::host), {Tier::nvme, Tier::device}, {Tier::host, Tier::device}}) {
        if (input_.*by_hand_of(part)) continue;
        const auto& units = best_->candidate.plan.units;
        const auto away = std::count_if(units.begin(), units.end(), [&](const UnitPlan& u) { return u.*part == from; });
        if (away > 0)
          most(static_cast<int>(away), [part, from = from, to = to](Plan& plan, int n) {
            for (size_t u = 0; u < plan.units.size() && n > 0; ++u)
              if (plan.units[u].*part == from) plan.units[u].*part = to, --n;
          });
      }
  }

  /// As many units' activations as the host has room for rest there and not on the disk, the last units' first: they
  /// have the least time.
  void activations_to_the_host() {
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

  /// Spends the memory that the best plan leaves.
  void spend() {
    if (!input_.recompute_units && !input_.activations) {
      int computed_again = 0;
      for (const UnitPlan& unit : best_->candidate.plan.units)
        computed_again += unit.activations == Policy::recompute && !unit.replays();
      if (computed_again > 0)
        most(computed_again, [&](Plan& plan, int n) {
          for (size_t u = 0; u < plan.units.size() && n > 0; ++u) {
            if (plan.units[u].activations != Policy::recompute || plan.units[u].replays()) continue;
            for (const std::string& site : attention_sites(model_.units[u], Sites::dear))
              plan.units[u].sites[site] = Policy::keep;
            --n;
          }
        });
    }
    double before;
    do {  // again as long as it helps: what leaves the host makes room for what is on the disk
      before = best_->candidate.seconds;
      bring_back();
      activations_to_the_host();
    } while (best_->candidate.seconds < before);
    if (!input_.strategy && mesh_.shard_size() > 1) {
      int released = 0;
      for (const UnitPlan& unit : best_->candidate.plan.units) released += unit.strategy == Strategy::full_shard;
      if (released > 0)
        most(released, [](Plan& plan, int n) {  // from the end: the last units stay for the shortest time
          for (size_t u = plan.units.size(); u-- > 0 && n > 0;)
            if (plan.units[u].strategy == Strategy::full_shard) plan.units[u].strategy = Strategy::shard_grad_op, --n;
        });
    }
    if (!input_.activations) {
      const auto& units = best_->candidate.plan.units;
      const auto lean = [](const UnitPlan& unit) { return unit.activations == Policy::rebuild; };
      if (const auto count = std::count_if(units.begin(), units.end(), lean); count > 0)
        most(static_cast<int>(count), [&](Plan& plan, int n) {  // from the end, likewise
          for (size_t u = plan.units.size(); u-- > 0 && n > 0;)
            if (lean(plan.units[u])) plan.units[u].activations = Policy::keep, --n;
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

  /// Tries the best plan with updates that run while others compute: just in time, or on the host. Only where what they
  /// use rests elsewhere is there anything to gain.
  void move_updates() {
    const Candidate before = best_->candidate;
    const auto& units = before.plan.units;
    const auto rests_away = [](const UnitPlan& u) {
      return u.parameters != Tier::device || u.gradients != Tier::device || u.states != Tier::device;
    };
    if (std::none_of(units.begin(), units.end(), rests_away)) return;
    std::vector<Update> whens = {before.plan.update};
    if (!input_.update) whens.push_back(Update::just_in_time);
    const bool all_by_hand = input_.parameters && input_.gradients && input_.states_tier;
    const bool free_to_move = !input_.update_on && (input_.host_budget > 0 || all_by_hand) &&
                              input_.parameters.value_or(Tier::host) == Tier::host &&
                              input_.gradients.value_or(Tier::host) == Tier::host &&
                              input_.states_tier.value_or(Tier::host) == Tier::host;
    for (const bool on_host : {false, true})
      for (const Update when : whens) {
        if ((on_host && !free_to_move) || (!on_host && when == before.plan.update)) continue;
        Plan plan = before.plan;
        plan.update = when;
        for (UnitPlan& unit : plan.units)
          if (on_host && unit.states == Tier::host) unit.parameters = unit.gradients = unit.update_on = Tier::host;
        if (plan != before.plan) consider(evaluate(std::move(plan)));
      }
    if (best_->candidate.plan != before.plan)
      moved_ = "; its updates " + words(best_->candidate.plan) + " make a step " +
               format_seconds(best_->candidate.seconds) + " instead of " + format_seconds(before.seconds);
  }

  static std::string words(const Plan& plan) {
    std::string text = plan.update == Update::just_in_time  ? "just in time"
                       : plan.update == Update::in_backward ? "in backward"
                                                            : "";
    if (std::any_of(plan.units.begin(), plan.units.end(), [](const UnitPlan& u) { return u.update_on == Tier::host; }))
      text += std::string(text.empty() ? "" : " and ") + "on the host";
    return text;
  }

  Choice finish() {
    Choice choice;
    choice.fits = best_.has_value();
    const Evaluated& winner = best_ ? *best_ : *smallest_;
    choice.plan = winner.candidate.plan;
    choice.seconds = winner.candidate.seconds;
    choice.memory = winner.memory;
    const std::string among = std::to_string(candidates_.size()) + " candidates";
    if (best_) {
      choice.why = "least predicted time of " + among + ", peak " + format_bytes(winner.candidate.peak) + " at " +
                   choice.memory.at_name + moved_;
    } else {
      choice.why = "nothing fits; this is the smallest of " + among;
      const MemoryParts& part = choice.memory.by_part;
      choice.advice = "the smallest plan needs " + format_bytes(winner.candidate.peak) + " a rank and plan.budget is " +
                      format_bytes(input_.budget) + ": parameters " + format_bytes(part.parameters) + ", gradients " +
                      format_bytes(part.gradients) + ", optimiser states " + format_bytes(part.states) + ", slots " +
                      format_bytes(part.slots) + ", activations " + format_bytes(part.activations + part.temporaries);
      if (over_host(winner.candidate) > 0) {
        const std::string host = " needs " + format_bytes(winner.candidate.host) +
                                 " of host memory a rank, and its share of plan.host_budget is " +
                                 format_bytes(input_.host_budget);
        if (over_device(winner.candidate) > 0)
          choice.advice += "; it" + host;
        else  // the device is not what it fails by
          choice.advice = "the smallest plan" + host + "; on the device it takes " +
                          format_bytes(winner.candidate.peak) + ", which fits";
      }
    }
    choice.candidates = std::move(candidates_);
    return choice;
  }

  const ModelSpec& model_;
  const Mesh& mesh_;
  const PlannerInput& input_;
  const Machine& machine_;
  int blocks_ = 0;
  bool rebuilds_ = false;            // a block's lean graph is the smaller one
  Update update_ = Update::end;      // of the plans to try
  std::string moved_;                // what moving updates gained, in words
  std::vector<Pipeline> pipelines_;  // to choose from; the first is tried with everything
  std::optional<Evaluated> best_, smallest_;
  std::vector<Candidate> candidates_;
};

/// A number of blocks that recompute, and what blocks do: both by hand must agree.
PlannerInput agreed(PlannerInput input) {
  if (!input.activations || !input.recompute_units) return input;
  const bool recompute = *input.activations == Policy::recompute;
  if (recompute != (*input.recompute_units > 0))
    throw UserError(Exit::usage, "plan.recompute",
                    std::to_string(*input.recompute_units) + " blocks with plan.activations = \"" +
                        std::string(name(*input.activations)) + "\"",
                    "leave one of the two on auto");
  if (!recompute) input.recompute_units.reset();
  return input;
}

bool set_by_hand(const PlannerInput& input) {
  return input.prefetch || input.recompute_units || input.strategy || input.activations || input.parameters ||
         input.gradients || input.states_tier || input.offload_to || input.update || input.update_on;
}

/// An update on the host by hand has its buffers there, unless they too are placed by hand.
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

}  // namespace

bool may_save_less(const UnitSpec& unit) { return unit.kind != "stem" && unit.kind != "head"; }

std::string slower_by_hand(const ModelSpec& model, const Mesh& mesh, PlannerInput input, const Machine& machine,
                           double seconds) {
  input.prefetch.reset(), input.recompute_units.reset(), input.strategy.reset(), input.activations.reset();
  input.boundary.reset();
  input.parameters.reset(), input.gradients.reset(), input.states_tier.reset(), input.offload_to.reset();
  input.update.reset(), input.update_on.reset();
  const Choice free = choose(model, mesh, input, machine);
  if (!free.fits || free.seconds >= seconds * (1 - kWorthSaying)) return {};
  return "a step of this plan, with what was set by hand, takes " + format_seconds(seconds) + "; \"" +
         free.plan.summary() + "\" would take " + format_seconds(free.seconds) +
         " and fits (leave plan.* on auto for it)";
}

Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& by_hand, const Machine& machine) {
  const PlannerInput input = placed(agreed(by_hand));
  Choice choice = Search(model, mesh, input, machine).run();
  if (choice.fits && set_by_hand(input)) choice.warning = slower_by_hand(model, mesh, input, machine, choice.seconds);
  return choice;
}

}  // namespace tessera::plan
