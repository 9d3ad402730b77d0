#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {

Compiler::Compiler(const ModelSpec& model, const Plan& plan, int rank, std::string phase)
    : model_(model),
      plan_(plan),
      rank_(rank),
      dp_rank_(plan.mesh.dp_rank(rank)),
      gather_(group_name("gather", kShardAxes)),
      reduce_(group_name("reduce", kShardAxes)),
      outer_(group_name("reduce_outer", {Axis::dp_replicate})),
      whole_(group_name("reduce_whole", kWholeAxes)),
      world_(group_name("control", {kAllAxes.begin(), kAllAxes.end()})),
      resident_(model.units.size()) {
  check_internal(
      plan.units.size() == model.units.size(), "plan.compile",
      "the plan has " + std::to_string(plan.units.size()) + " units, the model " + std::to_string(model.units.size()));
  schedule_.phase = std::move(phase);
  const StatesOf states = adamw_states(plan.states);
  for (size_t u = 0; u < model.units.size(); ++u) {
    layouts_.push_back(flat_layout(model.units[u], plan.shards(static_cast<int>(u))));
    const int shard = layouts_[u].shards > 1 ? plan.mesh.shard_rank(rank) : 0;
    state_bytes_.push_back(state_layout(model.units[u], layouts_[u], shard, states).bytes);
  }
}

Compiler::GroupName Compiler::group_name(const std::string& purpose, const std::vector<Axis>& axes) const {
  GroupName group;
  for (Axis a : axes)
    if (plan_.mesh[a] > 1) group.axis += (group.axis.empty() ? "" : "+") + std::string(axis_name(a));
  if (group.axis.empty()) return group;
  std::string ranks;
  for (int r : plan_.mesh.group(rank_, axes)) ranks += (ranks.empty() ? "" : ",") + std::to_string(r);
  group.name = purpose + ":" + group.axis + "[" + ranks + "]";
  return group;
}

Instruction Compiler::make(Op op, Lane lane, int unit, int micro) const {
  Instruction in;
  in.op = op, in.lane = lane, in.unit = unit, in.micro = micro;
  if (unit >= 0) in.name = model_.units[unit].name;
  return in;
}

int Compiler::add(Instruction in) {
  std::sort(in.wait.begin(), in.wait.end());
  in.wait.erase(std::unique(in.wait.begin(), in.wait.end()), in.wait.end());
  schedule_.list.push_back(std::move(in));
  return static_cast<int>(schedule_.list.size()) - 1;
}

Schedule Compiler::done() {
  schedule_.arena = arena_.size();
  schedule_.host_arena = host_.size();
  return std::move(schedule_);
}

Schedule Compiler::train() {
  const int units = static_cast<int>(model_.units.size());
  schedule_.micros = static_cast<int>(plan_.accumulation());
  std::vector<Visit> visits;
  for (int m = 0; m < schedule_.micros; ++m) {
    for (int u = 0; u < units; ++u) visits.push_back({true, u, m});
    for (int u = units - 1; u >= 0; --u) visits.push_back({false, u, m});
  }
  walk(visits);
  optimise();
  return done();
}

Schedule Compiler::forward_only(int micros) {
  schedule_.micros = micros;
  std::vector<Visit> visits;
  for (int m = 0; m < micros; ++m)
    for (int u = 0; u < static_cast<int>(model_.units.size()); ++u) visits.push_back({true, u, m});
  forward_only_ = true;
  walk(visits);
  return done();
}

Schedule Compiler::checkpoint() {
  Instruction in = make(Op::flush, Lane::disk, -1, -1);
  for (size_t u = 0; u < layouts_.size(); ++u)
    in.bytes += layouts_[u].shard * master_bytes(plan_.states.masters) + state_bytes_[u];
  in.group = world_.name;
  if (!world_.axis.empty()) in.comm = {{world_.axis, "barrier", 0}, {world_.axis, "barrier", 0}};
  add(in);
  return done();
}

Schedule compile_train(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "train").train();
}

Schedule compile_forward(const ModelSpec& model, const Plan& plan, int rank, std::string phase, int micros) {
  return Compiler(model, plan, rank, std::move(phase)).forward_only(micros);
}

Schedule compile_checkpoint(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "checkpoint").checkpoint();
}

void each_schedule(const RunShape& run, const RunSchedules& schedules,
                   const std::function<void(int64_t, const Schedule&)>& emit) {
  const int64_t last = run.last_step > 0 ? std::min(run.last_step, run.steps) : run.steps;
  for (int64_t step = run.first_step; step <= last; ++step) {
    emit(step, schedules.train);
    if (run.sample_every > 0 && (step % run.sample_every == 0 || step == run.steps))
      for (int64_t pass = 0; pass < int64_t{run.sample_prompts} * run.sample_steps; ++pass)
        emit(step, schedules.sample);
    if ((run.checkpoint_every > 0 && step % run.checkpoint_every == 0) || step == run.steps)
      emit(step, schedules.checkpoint);
  }
}

}  // namespace tessera::plan
