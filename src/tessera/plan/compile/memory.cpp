#include "tessera/plan/compile/memory.h"

#include <algorithm>
#include <numeric>

#include "tessera/plan/compile/activation_walk.h"
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/effects.h"
#include "tessera/plan/shared_weights.h"
#include "tessera/plan/unit_sizes.h"

namespace tessera::plan {

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
    curve.spared += plan.experts * (whole - parameters);
    const int64_t moments = sizes.state_bytes(static_cast<int>(u));
    place(unit.parameters).parameters += parameters;
    if (!plan.transient_gradient(layout, static_cast<int>(u)))
      // shared by experts: no gradient outlives an expert's step
      place(unit.gradients).gradients += plan.gradient_bytes(layout);
    place(unit.states).states += moments;
    place(plan.inactive_tier(unit.parameters)).parameters += (plan.experts - 1) * parameters;
    place(plan.inactive_tier(unit.states)).states += (plan.experts - 1) * moments;
  }
  curve.host.slots = std::max(host_arena, schedule.host_arena);
  curve.nvme.activations = schedule.disk_arena;
  curve.persistent = base.total();
  base.slots = std::max(arena, schedule.arena) + swap_piece(model, plan);
  base.activations = model.resident;
  ActivationWalk walk(model, plan, rank, schedule.phase == "train");
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
    curve.at_name = "a sample's decoding";
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

}  // namespace tessera::plan
