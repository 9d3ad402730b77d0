#include "tessera/plan/compile/memory.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/effects.h"
#include "tessera/plan/shared_weights.h"
#include "tessera/plan/unit_sizes.h"

namespace tessera::plan {

std::string replayed_sites(const UnitSpec& unit, const UnitPlan& plan) {
  std::string sites;
  if (!plan.recomputes()) return sites;
  for (const auto& [site, bytes] : unit.cost.results)
    if (plan.policy(site) != Policy::recompute) sites += (sites.empty() ? "" : ",") + site;
  return sites;
}

void check_sites(const ModelSpec& model, const Plan& plan) {
  for (size_t u = 0; u < model.units.size() && u < plan.units.size(); ++u) {
    const Footprint& f = model.units[u].cost;
    const bool recomputes = plan.units[u].recomputes();
    std::vector<std::string> known = {std::string(kBlockInput)};
    const auto& saved = f.graph(plan.units[u].selective()).saved_by_site;
    for (const auto& [site, bytes] : recomputes ? f.results : saved) known.push_back(site);
    for (const auto& [site, policy] : plan.units[u].sites)
      if (std::find(known.begin(), known.end(), site) == known.end())
        throw UserError(
            Exit::usage, "plan.sites",
            model.units[u].name + " has no site '" + site + "' to " + std::string(name(policy)) +
                (recomputes ? " (a recomputed unit can keep the results of these sites and its boundary)" : ""),
            "did you mean '" + nearest(site, known).front() + "'?");
    if (recomputes && !replayed_sites(model.units[u], plan.units[u]).empty() &&
        !f.replays.contains(replayed_sites(model.units[u], plan.units[u])))
      throw UserError(Exit::usage, "plan.sites", model.units[u].name + " has too many sites to keep some of them",
                      "name all of its sites in sites, or none");
  }
}

namespace {

/// Calls `each(policy, bytes, compact)` for everything that a unit's plan may offload or quantise: its input and the
/// tensors saved (or results, if recomputed) by its sites. The first unit's input is the batch and is excluded.
template <typename Each>
void each_saved(const ModelSpec& model, const Plan& plan, int unit, const Each& each) {
  const UnitPlan& choice = plan.units[unit];
  const Footprint& f = model.units[unit].cost;
  const bool recomputes = choice.recomputes();
  if (unit > 0) {
    const Footprint& before = model.units[unit - 1].cost;
    each(choice.policy(kBlockInput), before.out, before.compact_out);
  }
  const GraphCost& graph = f.graph(choice.selective());
  const auto& compact = recomputes ? f.compact_results : graph.compact_by_site;
  for (const auto& [site, bytes] : recomputes ? f.results : graph.saved_by_site) {
    const auto found = compact.find(site);
    each(choice.policy(site), bytes, found == compact.end() ? Compact{} : found->second);
  }
}

}  // namespace

Compressed compressed_bytes(const ModelSpec& model, const Plan& plan, int unit) {
  Compressed sum;
  if (!plan.units[unit].compresses()) return sum;
  each_saved(model, plan, unit, [&](const Policy& policy, int64_t, const Compact& compact) {
    if (!is_lossy(policy)) return;
    sum.whole += compact[*policy.form].whole;
    (leaves_device(policy) ? sum.offloaded : sum.kept) += compact[*policy.form].bytes;
  });
  return sum;
}

int64_t offloaded_bytes(const ModelSpec& model, const Plan& plan, int unit) {
  int64_t sum = 0;
  each_saved(model, plan, unit, [&](const Policy& policy, int64_t bytes, const Compact& compact) {
    if (!leaves_device(policy)) return;
    sum += bytes;
    if (is_lossy(policy)) sum += compact[*policy.form].bytes - compact[*policy.form].whole;
  });
  return sum;
}

const std::vector<Traffic>& traffic_of(const UnitSpec& unit, const UnitPlan& plan, Op op) {
  if (op == Op::backward) return unit.cost.backward_traffic;
  const std::string replayed = op == Op::recompute ? replayed_sites(unit, plan) : "";
  return replayed.empty() ? unit.cost.traffic : unit.cost.replays.at(replayed).traffic;
}

Traffic result_traffic(int64_t row_bytes) { return {"results", {Axis::pp}, "broadcast", Rows::share, row_bytes}; }

Traffic prediction_traffic(int64_t row_bytes, const Mesh& mesh) {
  return {"tokens", kSequenceAxes, "all_gather", Rows::share, row_bytes * (sequence_size(mesh) - 1)};
}

int backward_from(const ModelSpec& model, const Plan& plan) {
  const auto trained = [](const UnitSpec& unit) { return std::ranges::any_of(unit.params, &ParamSpec::trainable); };
  const auto first = std::ranges::find_if(model.units, trained);
  return first == model.units.end() ? 0 : backward_from(static_cast<int>(first - model.units.begin()), *first, plan);
}

int backward_from(int first, const UnitSpec& unit, const Plan& plan) {
  const bool wants_input = unit.cost.grad_in > 0;  // measured for a caller that asks for gradients of the inputs
  return wants_input || plan.pipeline.chunks > 1 ? 0 : first;
}

MemoryCurve memory_curve(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank, int64_t arena,
                         int64_t host_arena) {
  MemoryCurve curve;
  MemoryParts base;
  const UnitSizes sizes(model, plan, rank);
  const auto place = [&](Tier tier) -> MemoryParts& {
    return tier == Tier::device ? base : tier == Tier::host ? curve.host : curve.nvme;
  };
  for (size_t u = 0; u < model.units.size(); ++u) {
    if (!plan.owns(rank, static_cast<int>(u))) continue;
    const UnitLayout& layout = sizes.layout(static_cast<int>(u));
    const UnitPlan& unit = plan.units[u];
    const int64_t whole = shard_bytes(layout, plan.states.masters);
    const int64_t parameters =
        unit.parameters == Tier::host ? counted_host_bytes(plan, layout, static_cast<int>(u), rank) : whole;
    curve.spared += (plan.shared_base ? 1 : plan.experts) * (whole - parameters);
    const int64_t moments = sizes.state_bytes(static_cast<int>(u));
    place(unit.parameters).parameters += parameters;
    if (!plan.transient_gradient(layout, static_cast<int>(u)))
      // shared by experts, but for those side by side: no gradient outlives an expert's step
      place(unit.gradients).gradients += plan.together * plan.gradient_bytes(layout);
    place(unit.states).states += moments;
    place(plan.inactive_tier(unit.parameters)).parameters +=
        (plan.experts - 1) * (plan.shared_base ? plan.inactive_bytes(layout) : parameters);
    place(plan.inactive_tier(unit.states)).states += (plan.experts - plan.teachers - 1) * moments;
  }
  curve.host.slots = std::max(host_arena, schedule.host_arena);
  curve.nvme.activations = schedule.disk_arena;
  curve.persistent = base.total();
  base.slots = arena_of_all(plan, std::max(arena, schedule.arena)) + swap_piece(model, plan);
  base.activations = model.resident;
  ActivationWalk walk(model, plan, rank, schedule.phase == "train" || schedule.phase == "judged");
  for (size_t i = 0; i < schedule.list.size(); ++i) {
    const Instruction& in = schedule.list[i];
    const int64_t held = walk.live();
    const int64_t highest = base.total() + walk.run(in);
    curve.live.push_back(highest);
    if (highest <= curve.peak) continue;
    curve.peak = highest;
    curve.at = static_cast<int>(i);
    curve.by_part = base;
    curve.by_part.activations += held;
    curve.by_part.temporaries = highest - base.total() - held;
  }
  if (curve.at >= 0) {
    const Instruction& in = schedule.list[static_cast<size_t>(curve.at)];
    curve.at_name = std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name);
  }
  if (const int64_t idle = base.total() + model.between_steps; schedule.phase == "train" && idle > curve.peak) {
    curve.peak = idle;
    curve.at = static_cast<int>(schedule.list.size()) - 1;
    curve.at_name = "what is done between steps";
    curve.by_part = base;
    curve.by_part.temporaries = model.between_steps;
  }
  return curve;
}

// What happens to the order of a compiled list for its memory.
//
// Drops of offloaded activations are delayed as far as the peak allows: the compiler drops them one visit after their
// forward; a slower copy would stall the compute lane there, although the memory is seldom needed before the end of the
// forward. Then instructions whose device memory is taken at their place in the list wait for what had it before.

namespace {

constexpr int kVisits = 3;  // a link that is further behind than this limits the step anyway

bool computes(Op op) { return op == Op::forward || op == Op::recompute || op == Op::backward || op == Op::weight_grad; }

/// One of what a stash has copied; that of a unit without a backward stands where it is.
bool is_activation_drop(const Instruction& in) {
  return in.op == Op::drop && in.part == Part::activations && in.bytes > 0;
}

/// Whether `in` reloads what `drop` frees, or reads it from disk on the way.
bool reloads(const Instruction& in, const Instruction& drop) {
  return in.op == Op::fetch && in.part == Part::activations && in.unit == drop.unit && in.micro == drop.micro;
}

/// The latest instruction before which `drop` may run without exceeding `peak`.
int latest(const std::vector<Instruction>& list, const std::vector<int64_t>& held, int drop, int64_t peak) {
  const int64_t bytes = list[drop].bytes;
  int at = drop + 1, visits = 0;
  for (int i = at; i < static_cast<int>(list.size()) && visits < kVisits; ++i) {
    if (reloads(list[i], list[drop]) || held[i] + bytes > peak) break;
    if (!computes(list[i].op)) continue;
    at = i + 1;  // directly after the compute that overlapped the copy
    ++visits;
  }
  return at;
}

}  // namespace

void delay_drops(const ModelSpec& model, const Plan& plan, int rank, Schedule& schedule) {
  std::vector<Instruction>& list = schedule.list;
  if (std::none_of(list.begin(), list.end(), is_activation_drop)) return;
  const int count = static_cast<int>(list.size());
  ActivationWalk walk(model, plan, rank, /*train=*/true);
  std::vector<int64_t> held;
  held.reserve(list.size());
  for (const Instruction& in : list) held.push_back(walk.run(in));
  const int64_t peak = *std::max_element(held.begin(), held.end());

  std::vector<int> front(count);  // for each instruction: the one it moves in front of
  std::iota(front.begin(), front.end(), 0);
  for (int i = count - 1; i >= 0; --i) {  // last drop first: memory is scarcest towards the end of the forward
    if (!is_activation_drop(list[i])) continue;
    front[i] = latest(list, held, i, peak);
    for (int later = i + 1; later < front[i]; ++later) held[later] += list[i].bytes;
  }

  std::vector<int> order(count), place(count);
  std::iota(order.begin(), order.end(), 0);
  // If several move in front of the same instruction, that instruction stays behind them.
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return front[a] < front[b]; });
  for (int i = 0; i < count; ++i) place[order[i]] = i;
  std::vector<Instruction> moved;
  moved.reserve(list.size());
  for (const int i : order) {
    moved.push_back(std::move(list[i]));
    for (int& wait : moved.back().wait) wait = place[wait];
  }
  list = std::move(moved);
}

void order_memory(Schedule& schedule) {
  int last = -1;  // instruction of the compute lane after which all memory is free that was freed so far
  for (int i = 0; i < static_cast<int>(schedule.list.size()); ++i) {
    Instruction& in = schedule.list[i];
    const Effects does = effects(in);
    if (does.touches_activations) last = i;
    if (!does.takes_memory || last < 0) continue;
    const auto at = std::lower_bound(in.wait.begin(), in.wait.end(), last);
    if (at == in.wait.end() || *at != last) in.wait.insert(at, last);
  }
}

namespace {

int64_t sum(const std::vector<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

bool goes_forward(Lane lane) { return lane == Lane::send_next || lane == Lane::recv_prev; }

}  // namespace

ActivationWalk::ActivationWalk(const ModelSpec& model, const Plan& plan, int rank, bool train)
    : model_(model),
      plan_(plan),
      dp_rank_(plan.mesh.dp_rank(rank)),
      train_(train),
      has_first_(plan.owns(rank, 0)),
      has_last_(plan.owns(rank, static_cast<int>(model.units.size()) - 1)),
      defers_(train && plan.pipeline.schedule == PipelineSchedule::zero_bubble),
      backward_from_(train ? backward_from(model, plan) : 0),
      first_unit_(std::max(plan.first_unit(plan.mesh.coordinate(rank, Axis::pp)), backward_from_)),
      only_forward_(plan.first_unit(plan.mesh.coordinate(rank, Axis::pp) + 1) <= backward_from_) {
  const auto add = [&](const ModelSpec& of) {
    Costs& costs = costs_.emplace_back(Costs{of, {}});
    for (size_t u = 0; u < of.units.size(); ++u) costs.units.push_back(facts(of, static_cast<int>(u)));
  };
  for (const ModelSpec& smaller : model.smaller) add(smaller);
  add(model);
}

const ActivationWalk::Costs& ActivationWalk::costs(int micro) const {
  if (!train_ || micro < 0 || model_.smaller.empty()) return costs_.back();
  const ModelSpec& model = model_.on(plan_.slice(dp_rank_, micro).count);
  return *std::ranges::find(costs_, &model, [](const Costs& costs) { return &costs.model; });
}

int64_t ActivationWalk::run(const Instruction& in) {
  const int64_t before = live_;
  const auto& [model, units] = costs(in.micro);
  switch (in.op) {
    case Op::forward:
      return forward(in.unit, in.micro);
    case Op::loss:
      live_ += model.loss_grad - model.targets;
      live_ -= let_go(static_cast<int>(units.size()) - 1, in.micro);  // the prediction
      return before + model.loss_peak;
    case Op::finish:
      load(in.micro);
      live_ -= has_last_ ? model.units.back().cost.out : 0;
      end(in.micro);
      return before + (has_last_ ? 0 : model.units.back().cost.out);
    case Op::recompute:
      live_ += units[in.unit].rebuilt;
      return before + units[in.unit].recompute_peak;
    case Op::backward:
      return backward(in.unit, in.micro);
    case Op::weight_grad:
      return weight_grad(in.unit, in.micro);
    case Op::drop:
      if (in.part == Part::message && std::pair(in.unit, in.micro) == sent_) {
        sent_ = {-1, -1};
        live_ -= let_go(in.unit - 1, in.micro);
        if (only_forward_) end(in.micro);
        return before;
      }
      live_ -= in.part == Part::activations || in.part == Part::message ? in.bytes : 0;
      return before;
    case Op::compress: {
      const Compressed c = compressed_bytes(model, plan_, in.unit);
      live_ += c.bytes() - c.whole;
      return before + c.bytes();
    }
    case Op::expand: {
      const Compressed c = compressed_bytes(model, plan_, in.unit);
      live_ += c.whole - c.bytes();
      return before + c.whole;
    }
    case Op::fetch:  // [Note: memory at a place]
      live_ += in.part == Part::activations && in.lane != Lane::disk ? in.bytes : 0;
      return live_;
    case Op::recv:  // likewise
      receive(in);
      return live_;
    case Op::send:
      return send(in);
    default:
      return before;
  }
}

ActivationWalk::Facts ActivationWalk::facts(const ModelSpec& model, int unit) const {
  const Footprint& f = model.units[unit].cost;
  if (!train_ || unit < backward_from_) return {f.forward_peak, 0, 0, 0, 0, &f};
  const UnitPlan& plan = plan_.units[unit];
  const GraphCost& graph = f.graph(plan.selective());
  if (!plan.recomputes()) return {graph.keep_peak, graph.saved, 0, 0, graph.saved_out, &graph};
  const std::string sites = replayed_sites(model.units[unit], plan);
  if (sites.empty()) return {f.forward_peak, 0, f.recompute_peak, f.recompute_saved, 0, &graph};
  const Footprint::Replay& replay = f.replays.at(sites);
  int64_t kept = 0;
  for (const auto& [site, bytes] : f.results)
    if (plan.policy(site) != Policy::recompute) kept += bytes;
  return {replay.forward_peak, kept, replay.recompute_peak, replay.recompute_saved, 0, &graph};
}

/// Returns the micro-batch and loads its inputs at the rank's first use of it. Later stages have only what the tokens need.
ActivationWalk::Micro& ActivationWalk::load(int micro) {
  const auto [it, is_new] = micros_.try_emplace(micro);
  if (is_new) {
    const ModelSpec& model = costs(micro).model;
    it->second.inputs = has_first_ ? model.inputs : model.tables;
    live_ += it->second.inputs + (train_ && has_last_ ? model.targets : 0);
  }
  return it->second;
}

int64_t ActivationWalk::forward(int unit, int micro) {
  Micro& m = load(micro);
  const auto& [model, units] = costs(micro);
  const Footprint& f = model.units[unit].cost;
  const int64_t peak = live_ + units[unit].forward_peak;
  live_ += f.out + f.cond + units[unit].kept;
  m.conditioning += f.cond;
  if ((!train_ || unit < backward_from_) && unit > 0) live_ -= model.units[unit - 1].cost.out;
  return peak;
}

int64_t ActivationWalk::backward(int unit, int micro) {
  Micro& m = load(micro);
  const auto& [model, units] = costs(micro);
  const Footprint& f = model.units[unit].cost;
  m.cond_grad.resize(std::max({m.cond_grad.size(), f.grad_cond.size(), m.received.size()}));
  if (unit == m.received_by) {
    for (size_t c = 0; c < m.received.size(); ++c) {  // added to the existing gradient, or kept as the first one
      if (m.cond_grad[c] > 0)
        live_ -= m.received[c];
      else
        m.cond_grad[c] = m.received[c];
    }
    m.received.clear();
    m.received_by = -1;
  }
  const GraphCost& graph = *units[unit].graph;
  // A message that is under way still holds what the graph, else alone with it, would let go of on its way.
  const int64_t beside = m.held.contains(unit) ? 0 : units[unit].saved_out;
  const int64_t peak = live_ + beside + (defers_ ? graph.deferred_peak : graph.backward_peak);
  live_ += defers_ ? graph.deferred : 0;
  live_ -= units[unit].kept + units[unit].rebuilt;
  if (units[unit].saved_out > 0) live_ -= std::exchange(m.held[unit], 0);
  const bool begins_stage = plan_.first_unit(plan_.stage_of(unit)) == unit;  // its input is a message
  if (unit > 0)  // this unit's input, used here for the last time
    live_ -= begins_stage ? model.units[unit - 1].cost.out : let_go(unit - 1, micro);
  const bool ends_stage = plan_.first_unit(plan_.stage_of(unit) + 1) == unit + 1;
  live_ -= is_last(unit) ? model.loss_grad : ends_stage ? f.out : model.units[unit + 1].cost.grad_in;
  live_ += f.grad_in;
  for (size_t c = 0; c < f.grad_cond.size(); ++c) {
    if (m.cond_grad[c] > 0) continue;
    m.cond_grad[c] = f.grad_cond[c];
    live_ += f.grad_cond[c];
  }
  if (unit == backward_from_) {  // the end of the micro-batch
    live_ -= sum(m.cond_grad) + f.grad_in;
    if (!defers_) end(micro);
  }
  return peak;
}

/// The deferred weight gradients also hold inputs and conditioning: the micro-batch ends with the last of them.
int64_t ActivationWalk::weight_grad(int unit, int micro) {
  const GraphCost& graph = *costs(micro).units[unit].graph;
  const int64_t peak = live_ + graph.weight_grad_peak;
  live_ -= graph.deferred;
  if (unit == first_unit_) end(micro);
  return peak;
}

/// Whether the message carries conditioning: each rank receives it once, with its first stage, and sends back its
/// gradient from there.
bool ActivationWalk::carries_conditioning(const Instruction& in) const {
  return plan_.stage_of(goes_forward(in.lane) ? in.unit : in.unit + 1) < plan_.mesh[Axis::pp];
}

void ActivationWalk::receive(const Instruction& in) {
  Micro& m = load(in.micro);
  live_ += in.bytes;
  if (!carries_conditioning(in)) return;
  const std::vector<int64_t>& conditioning = costs(in.micro).model.conditioning;
  if (goes_forward(in.lane))
    m.conditioning += sum(conditioning);
  else
    m.received = conditioning, m.received_by = in.unit;
}

int64_t ActivationWalk::send(const Instruction& in) {
  const int64_t before = live_;
  if (goes_forward(in.lane)) {
    sent_ = {in.unit, in.micro};
    return before;
  }
  // Outputs that were not computed are sent as zeros. The zeros are allocated while the micro-batch is still held, and
  // a head that is alone in its stage allocates more for them than its backward needs.
  const ModelSpec& model = costs(in.micro).model;
  live_ += model.units[in.unit].cost.out - model.units[in.unit + 1].cost.grad_in;
  if (!carries_conditioning(in)) return std::max(before, live_);
  live_ += sum(model.conditioning) - sum(micros_[in.micro].cond_grad);
  const int64_t highest = std::max(before, live_);
  if (!defers_) end(in.micro);
  return highest;
}

/// The bytes that are free once nothing but the unit's graph holds its output.
int64_t ActivationWalk::let_go(int unit, int micro) {
  const auto& [model, units] = costs(micro);
  const int64_t out = model.units[unit].cost.out, saved = units[unit].saved_out;
  const auto m = micros_.find(micro);
  if (saved == 0 || m == micros_.end()) return out;
  const bool lives = m->second.held.try_emplace(unit, saved).second;  // else its backward was before
  return lives ? out - saved : out;
}

void ActivationWalk::end(int micro) {
  live_ -= micros_[micro].inputs + micros_[micro].conditioning;
  micros_.erase(micro);
}

}  // namespace tessera::plan
