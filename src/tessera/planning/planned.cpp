#include "tessera/planning/planned.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/units.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/shares.h"
#include "tessera/plan/unit_keys.h"

namespace tessera::planning {

plan::RunSchedules Planned::schedules(int rank) const {
  plan::RunSchedules all = plan::compile_all(spec, plan(), rank, guidance_branches);
  if (run.asks()) all.base = plan::compile_forward(spec, plan(), rank, run.distils() ? "teacher" : "base", 1);
  if (tangent) all.tangent = plan::compile_forward(*tangent, plan(), rank, "tangent", 1);
  if (teacher) {
    all.of_teacher = teacher_plan();
    all.teacher = plan::compile_forward(teacher->model, all.of_teacher, rank, "teacher", 1);
  }
  if (features) {
    all.features = plan::compile_forward(*features, plan(), rank, "features", 1);
    all.judged = plan::compile_frozen(*features, plan(), rank, "judged");
    all.exchange = plan::compile_exchange(spec, plan(), rank);
  }
  return all;
}

namespace {

/// Adds what the networks of `other` keep between their passes.
void keep_beside(plan::MemoryCurve& curve, const plan::MemoryCurve& other) {
  curve.peak += other.persistent, curve.persistent += other.persistent;
  for (int64_t& live : curve.live) live += other.persistent;
  for (int64_t plan::MemoryParts::*part :
       {&plan::MemoryParts::parameters, &plan::MemoryParts::gradients, &plan::MemoryParts::states}) {
    curve.by_part.*part += other.by_part.*part;
    curve.host.*part += other.host.*part, curve.nvme.*part += other.nvme.*part;
  }
  curve.spared += other.spared;
}

}  // namespace

plan::MemoryCurve Planned::memory(int rank) const {
  const plan::RunSchedules all = schedules(rank);
  const bool samples = run.forwards();
  int64_t arena = all.arena(samples), host_arena = all.host_arena(samples);
  std::vector<plan::Schedule> passes;  // of the plans behind the first in by_use
  for (size_t p = 1; p < by_use.size(); ++p) {
    const plan::Schedule& pass = passes.emplace_back(plan::compile_train(spec, by_use[p].plan, rank));
    arena = std::max(arena, pass.arena), host_arena = std::max(host_arena, pass.host_arena);
  }
  plan::ModelSpec own = spec;  // of whose heads other ranks may have less to do
  if (features) own.between_steps = std::max(features->between_steps, heads.activations.at(plan().mesh.dp_rank(rank)));
  const auto curve = [&](const plan::Plan& of, const plan::Schedule& train) {
    return plan::memory_curve(own, of, train, rank, arena, host_arena);
  };
  plan::MemoryCurve most = curve(plan(), all.train);
  const auto cover = [&most](plan::MemoryCurve other) {
    const plan::MemoryParts host = other.host.total() > most.host.total() ? other.host : most.host;
    if (other.peak > most.peak) most = std::move(other);
    most.host = host;
  };
  for (const auto& [expert, own] : all.of_expert) cover(curve(plan().as_of(expert), own.train));
  for (size_t p = 1; p < by_use.size(); ++p) cover(curve(by_use[p].plan, passes[p - 1]));
  if (tangent)
    cover(plan::memory_curve(*tangent, plan(), all.tangent, rank, all.arena(samples), all.host_arena(samples)));
  if (features)
    for (const auto& [schedule, of] :
         {std::pair(&all.features, plan()), std::pair(&all.judged, plan::frozen_pass(plan()))})
      cover(plan::memory_curve(*features, of, *schedule, rank, all.arena(samples), all.host_arena(samples)));
  if (!teacher) return most;
  plan::ModelSpec beside = teacher->model;
  beside.resident = spec.resident + plan::swap_piece(spec, plan());
  plan::MemoryCurve pass =
      plan::memory_curve(beside, all.of_teacher, all.teacher, rank, all.arena(samples), all.host_arena(samples));
  const plan::MemoryCurve alone = pass;
  keep_beside(pass, most), keep_beside(most, alone);
  if (pass.peak > most.peak) {
    pass.host = most.host;
    return pass;
  }
  return most;
}

void Planned::predict() {
  prediction = plan::predict(spec, plan(), machine);
  of_expert.clear();
  for (const auto& [expert, units] : plan().of_expert)
    of_expert[expert] = plan::predict(spec, plan().as_of(expert), machine).step;
  if (run.matches()) return predict_matching();
  if (!run.asks()) return;
  double batches = 0;  // passes, each as long as its share of a micro-batch
  for (const plan::AskBase which : {run.base, run.unguided})
    for (const int64_t samples : plan::asking_base(plan(), which))
      batches += static_cast<double>(samples) / static_cast<double>(plan().micro_batch);
  constexpr double kForwardMode = 2.5;  // of a forward: values and tangents of every product, and more of what is small
  const auto passes = [&](plan::AskBase which, double each) {
    for (const int64_t samples : plan::asking_base(plan(), which))
      batches += each * static_cast<double>(samples) / static_cast<double>(plan().micro_batch);
  };
  if (run.distils()) passes(run.judges ? plan::AskBase::clips : plan::AskBase::any, run.teacher_passes + kForwardMode);
  // The student forward, the teacher forward twice and backward; steps in which heads learn are shorter.
  if (run.judges) passes(plan::AskBase::twins, 5);
  const double seconds = batches * plan::forward_seconds(spec, plan(), machine);
  const auto add = [seconds](plan::StepSeconds& step) { step.base = seconds, step.total += seconds; };
  add(prediction.step);
  for (auto& [expert, step] : of_expert) add(step);
}

/// The passes before a step differ from network to network, and by the exit that is drawn.
void Planned::predict_matching() {
  constexpr int64_t kMost = 1000;  // steps that the mean is of
  const int64_t last = std::min(run.last_step > 0 ? run.last_step : run.steps, run.first_step + kMost - 1);
  const auto micros = static_cast<double>(plan().accumulation());
  const double pass = micros * plan::forward_seconds(spec, plan(), machine);
  const double of_teacher =
      teacher ? micros * plan::forward_seconds(teacher->model, teacher_plan(), teacher->machine) : 0;
  std::map<int, std::pair<double, int64_t>> passes;  // seconds of an expert's steps, and how many these are
  for (int64_t step = run.first_step; step <= last; ++step) {
    auto& [sum, steps] = passes[run.expert_of ? run.expert_of(step) : 0];
    const plan::RunShape::Passes of = run.passes_of(step);
    const int by_teacher = run.passes_by_teacher(step);
    sum += pass * (of.of_clips - by_teacher + static_cast<double>(of.of_chunks) / run.chunks) + of_teacher * by_teacher;
    ++steps;
  }
  const plan::StepSeconds alone = prediction.step;
  for (const auto& [expert, of] : passes) {
    plan::StepSeconds& step = expert == 0 ? prediction.step : of_expert.try_emplace(expert, alone).first->second;
    step.base = of.first / static_cast<double>(of.second);
    step.total += step.base;
  }
}

double Planned::mean_step() const {
  if (of_expert.empty()) return prediction.step.total;
  std::vector<double> seconds(static_cast<size_t>(plan().experts), prediction.step.total);
  for (const auto& [expert, step] : of_expert) seconds[static_cast<size_t>(expert)] = step.total;
  return plan::mean_seconds(seconds, routing.shares);
}

std::vector<std::string> Planned::unit_names() const {
  std::vector<std::string> names;
  for (const auto& unit : spec.units) names.push_back(unit.name);
  return names;
}

std::vector<int64_t> Planned::own_samples() const {
  std::vector<int64_t> own(static_cast<size_t>(plan().mesh.dp_size()), 0);
  for (int d = 0; d < plan().mesh.dp_size(); ++d)
    for (int64_t m = 0; m < plan().accumulation(); ++m) own[static_cast<size_t>(d)] += plan().slice(d, m).count;
  return own;
}

std::vector<size_t> Planned::plans_of_experts(const std::vector<double>& frequencies) const {
  const plan::DealForecast often = plan::deal_forecast(frequencies, own_samples(), {plan().micro_batch});
  return plan::plans_by_use(by_use, routing.deals ? often.dealt : often.undealt);
}

int64_t Planned::loader_bytes() const {
  const int64_t most = std::ranges::max(own_samples());
  const bool dealt = routing.deals && plan().mesh.dp_size() > 1;
  return (dealt ? 4 : 2) * most * host_sample;
}

std::vector<plan::LibraryBytes> Planned::workspaces() const {
  return plan::workspaces(machine.profile, device_threads, deterministic);
}
std::vector<plan::LibraryBytes> Planned::beside() const {
  std::vector<plan::LibraryBytes> lines = plan::beside_plan(machine.profile, {spec, plan()});
  if (!lines.empty() && graphs.bytes > 0)
    lines.push_back({"CUDA graphs", graphs.bytes,
                     "of the driver, " + format_bytes(plan::kNodeBytes) + " a node, for up to " +
                         std::to_string(plan::kMostGraphs) + " forms of steps [E]"});
  return lines;
}
int64_t Planned::driver_bytes(int64_t budget) const {
  return plan::driver_bytes(machine.profile, {spec, plan()}, budget) + graphs.bytes;
}

void Planned::warn(const std::string& message) {
  std::string& warning = choice.warning;
  if (!message.empty()) warning += (warning.empty() ? "" : "; ") + message;
}

namespace {

/// Bytes of optimiser states on the ranks' devices.
class DeviceStates {
 public:
  DeviceStates(const plan::ModelSpec& spec, const plan::Plan& plan)
      : spec_(spec), plan_(plan), states_(plan::states_of(plan.states)) {
    for (size_t u = 0; u < spec.units.size(); ++u) {
      const plan::Tier tier = plan.units[u].states;
      const int copies = (tier == plan::Tier::device) +
                         (plan.inactive_tier(tier) == plan::Tier::device) * (plan.experts - plan.teachers - 1);
      if (copies > 0) units_.push_back({static_cast<int>(u), copies, plan.layout(spec.units[u], static_cast<int>(u))});
    }
  }

  int64_t of(int rank) const {
    int64_t bytes = 0;
    for (const auto& [unit, copies, layout] : units_)
      if (plan_.owns(rank, unit))
        bytes +=
            copies *
            plan::state_layout(spec_.units[static_cast<size_t>(unit)], layout, plan_.held(layout, rank), states_).bytes;
    return bytes;
  }

 private:
  struct Kept {
    int unit, copies;
    plan::UnitLayout layout;
  };
  const plan::ModelSpec& spec_;
  const plan::Plan& plan_;
  const plan::StatesOf states_;
  std::vector<Kept> units_;
};

}  // namespace

int Planned::highest_rank() const {
  // Ranks of a group run the same schedule and differ in their states alone: a state begins at a multiple of 64 bytes in
  // each tensor's part of a shard, the end of the last shard has none, and factored ones belong to whole tensors.
  std::map<std::array<int64_t, 2>, std::pair<int64_t, int>> heaviest;
  const DeviceStates states(spec, plan());
  for (int rank = 0; rank < plan().mesh.world(); ++rank) {
    auto& [bytes, of] = heaviest.try_emplace(plan::rank_kind(plan(), rank), -1, rank).first->second;
    if (const int64_t own = states.of(rank); own > bytes) bytes = own, of = rank;
  }
  int highest = -1;
  int64_t peak = -1;
  for (const auto& [kind, found] : heaviest)
    if (const int64_t own = memory(found.second).peak; own > peak || (own == peak && found.second < highest))
      peak = own, highest = found.second;
  return highest;
}

}  // namespace tessera::planning
