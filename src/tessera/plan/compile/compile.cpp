#include "tessera/plan/compile/compile.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/rank_grid.h"
#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {

Compiler::Compiler(const ModelSpec& model, const Plan& plan, int rank, std::string phase, CompiledFor compiled_for)
    : model_(model),
      plan_(plan),
      rank_(rank),
      dp_rank_(plan.mesh.dp_rank(rank)),
      for_memory_(compiled_for == CompiledFor::memory),
      outer_(group_name("reduce_outer", {Axis::dp_replicate})),
      world_(group_name("control", {kAllAxes.begin(), kAllAxes.end()})),
      pp_rank_(plan.mesh.coordinate(rank, Axis::pp)),
      sizes_(model, plan, rank),
      resident_(model.units.size()),
      written_(model.units.size()),
      arena_(!for_memory_),
      host_(!for_memory_),
      disk_(!for_memory_) {
  for (auto& parts : written_) parts.fill(-1);
  schedule_.phase = std::move(phase);
  names_.reserve(model.units.size());
  for (const UnitSpec& unit : model.units) names_.emplace_back(unit.name);
  for (int u = 0; u < static_cast<int>(model.units.size()); ++u)
    if (plan.owns(rank, u)) own_.push_back(u);
}

const Compiler::GroupName& Compiler::group_name(const std::string& purpose, const std::vector<Axis>& axes) const {
  const auto known = std::ranges::find_if(
      groups_, [&](const KnownGroup& other) { return other.purpose == purpose && other.axes == axes; });
  if (known != groups_.end()) return known->group;
  std::string axis, name;
  for (Axis a : axes)
    if (plan_.mesh[a] > 1) axis += (axis.empty() ? "" : "+") + std::string(axis_name(a));
  if (!axis.empty()) name = purpose + ":" + axis + "[" + RankGrid(plan_.mesh, rank_, axes).text() + "]";
  return groups_.emplace_back(KnownGroup{purpose, axes, {axis, name}}).group;
}

const Compiler::GroupName& Compiler::buffer_group(const char* purpose, const Buffer& buffer) const {
  for (const GroupOfBuffers& known : groups_of_buffers_)  // every gather and reduction asks: without new strings
    if (known.sharded == (buffer.shards > 1) && known.over_tp == buffer.over_tp && known.purpose == purpose)
      return *known.group;
  const GroupName& group = group_name(purpose, plan_.axes(buffer));
  groups_of_buffers_.push_back({purpose, buffer.shards > 1, buffer.over_tp, &group});
  return group;
}

void Compiler::collect(Instruction& in, const char* purpose, Symbol kind, Gathered buffers, int64_t element) const {
  if (for_memory_) return;
  for (const Buffer& buffer : sizes_.layout(in.unit).buffers) {
    if (buffer.shards == 1 || (buffers == Gathered::trained && !buffer.trainable)) continue;
    const GroupName& group = buffer_group(purpose, buffer);
    const int64_t share =
        buffer.stored == DType::f32 ? buffer.shard * element : stored_bytes(buffer.stored, buffer.shard);
    in.comm.push_back({group.axis, kind, share * (buffer.shards - 1), group.name});
  }
  if (!in.comm.empty()) in.group = in.comm.front().group;
}

/// Declares the sum of a unit's gradients over the ranks that hold the same shard, or the same unsharded buffer.
void Compiler::sum_over_replicas(Instruction& in, int unit) const {
  const UnitLayout& layout = sizes_.layout(unit);
  const int64_t element = size_of(plan_.reduce);
  in.bytes = layout.grad_shard * kElement;
  if (layout.partitioned()) return reduce_scatter_partitions(in, unit);
  if (layout.sharded && !outer_.axis.empty())
    in.comm = {{outer_.axis, kAllReduce, layout.grad_shard * element, outer_.name}};
  if (!layout.sharded)
    for (const Buffer& buffer : layout.buffers) {
      if (!buffer.trainable) continue;
      const GroupName& group = buffer_group("reduce_whole", buffer);
      if (!group.axis.empty()) in.comm.push_back({group.axis, kAllReduce, buffer.shard * element, group.name});
    }
  if (!in.comm.empty()) in.group = in.comm.front().group;
}

/// With partitions each rank only needs the sum of the partition it updates: a reduce_scatter.
void Compiler::reduce_scatter_partitions(Instruction& in, int unit) const {
  for (const Buffer& buffer : sizes_.layout(unit).buffers) {
    if (!buffer.trainable) continue;
    const GroupName& group = group_name(buffer.shards > 1 ? "reduce_outer" : "reduce_whole", plan_.outer_axes(buffer));
    in.comm.push_back(
        {group.axis, kReduceScatter, buffer.partition() * size_of(plan_.reduce) * (buffer.partitions - 1), group.name});
  }
  in.group = in.comm.front().group;
}

Instruction Compiler::make(Op op, Lane lane, int unit, int micro) const {
  Instruction in;
  in.op = op, in.lane = lane, in.unit = unit, in.micro = micro;
  if (unit >= 0) in.name = names_[unit];
  return in;
}

int Compiler::add(Instruction in) {
  if (for_memory_) {
    in.wait.clear();
  } else {
    std::sort(in.wait.begin(), in.wait.end());
    in.wait.erase(std::unique(in.wait.begin(), in.wait.end()), in.wait.end());
  }
  schedule_.list.push_back(std::move(in));
  return static_cast<int>(schedule_.list.size()) - 1;
}

Schedule Compiler::done() {
  release_bounce_buffers(0);
  schedule_.arena = arena_.size();
  schedule_.host_arena = host_.size();
  schedule_.disk_arena = disk_.size();
  return std::move(schedule_);
}

Schedule Compiler::train(bool pending) {
  // The list of a step's instructions: this many uses of units are 1 GiB of it, and 4 s of planning.
  constexpr int64_t kMostUses = 1 << 18;
  const auto units = static_cast<int64_t>(model_.units.size());
  if (plan_.accumulation() > kMostUses / units)
    throw UserError(Exit::usage, "train.global_batch",
                    std::to_string(plan_.global_batch) + " samples on " + std::to_string(plan_.mesh.dp_size()) +
                        " dp ranks in micro-batches of " + std::to_string(plan_.micro_batch) + " are " +
                        std::to_string(plan_.accumulation()) + " micro-batches a step, expected at most " +
                        std::to_string(kMostUses / units) + " of " + std::to_string(units) + " units",
                    "take more ranks, a larger train.micro_batch or a smaller train.global_batch");
  schedule_.micros = static_cast<int>(plan_.accumulation());
  std::vector<Visit> visits;
  for (const PipelineAct& act :
       pipeline_acts(plan_.pipeline.schedule, plan_.mesh[Axis::pp], pp_rank_, plan_.pipeline.chunks, schedule_.micros))
    for (const Visit& visit : visits_of(act)) visits.push_back(visit);
  if (plan_.update == Update::just_in_time && pending) {
    std::set<int> seen;
    for (const Visit& visit : visits)
      if (sizes_.layout(visit.unit).grad_total > 0 && seen.insert(visit.unit).second) pending_.push_back(visit.unit);
  }
  schedule_.list.reserve(visits.size() * 8);  // somewhat more than most plans have
  walk(visits);
  norm();
  if (plan_.update == Update::end) update_all();
  return done();
}

Schedule Compiler::updates() {
  schedule_.micros = 0;
  update_all();
  return done();
}

Schedule Compiler::forward_only(int micros) {
  schedule_.micros = micros;
  std::vector<Visit> visits;
  for (int chunk = 0; chunk < plan_.pipeline.chunks; ++chunk)
    for (int m = 0; m < micros; ++m)
      for (const Visit& visit : visits_of({PipelineAct::Kind::forward, chunk, m})) visits.push_back(visit);
  forward_only_ = true;
  walk(visits);
  if (plan_.mesh[Axis::pp] > 1) broadcast_results();
  return done();
}

Schedule Compiler::checkpoint() {
  Instruction in = make(Op::flush, Lane::disk, -1, -1);
  for (const int u : own_) in.bytes += shard_bytes(sizes_.layout(u), plan_.states.masters) + sizes_.state_bytes(u);
  in.group = world_.name;
  if (!world_.axis.empty()) in.comm.assign(2, {world_.axis, "barrier", 0, world_.name});
  add(in);
  return done();
}

Schedule compile_train(const ModelSpec& model, const Plan& plan, int rank, bool pending, CompiledFor compiled_for) {
  Schedule schedule = Compiler(model, plan, rank, "train", compiled_for).train(pending);
  if (compiled_for == CompiledFor::memory) return schedule;
  delay_drops(model, plan, rank, schedule);
  order_memory(schedule);
  return schedule;
}

Schedule compile_updates(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "update").updates();
}

ArenaBytes arenas_without_pending(const ModelSpec& model, const Plan& plan, int rank) {
  const Schedule updates = Compiler(model, plan, rank, "update", CompiledFor::memory).updates(),
                 first = Compiler(model, plan, rank, "train", CompiledFor::memory).train(/*pending=*/false);
  return ArenaBytes{updates.arena, updates.host_arena}.covering({first.arena, first.host_arena});
}

Schedule compile_forward(const ModelSpec& model, const Plan& plan, int rank, std::string phase, int micros) {
  Schedule schedule = Compiler(model, plan, rank, std::move(phase)).forward_only(micros);
  order_memory(schedule);
  return schedule;
}

Schedule compile_checkpoint(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "checkpoint").checkpoint();
}

RunSchedules compile_all(const ModelSpec& model, const Plan& plan, int rank, int passes) {
  RunSchedules all;
  all.train = compile_train(model, plan, rank);
  all.sample = compile_forward(model, plan, rank, "sample", passes);
  all.checkpoint = compile_checkpoint(model, plan, rank);
  const bool deferred = plan.update == Update::just_in_time;
  if (deferred) {
    all.first = compile_train(model, plan, rank, /*pending=*/false);
    all.updates = compile_updates(model, plan, rank);
  }
  for (const auto& [expert, units] : plan.of_expert) {
    const Plan own = plan.as_of(expert);
    RunSchedules::Own& schedules = all.of_expert[expert];
    schedules.train = compile_train(model, own, rank);
    if (!deferred) continue;
    schedules.first = compile_train(model, own, rank, /*pending=*/false);
    schedules.updates = compile_updates(model, own, rank);
  }
  return all;
}

int64_t RunSchedules::most(int64_t Schedule::*bytes, bool samples) const {
  int64_t all = std::max({train.*bytes, first.*bytes, updates.*bytes, samples ? sample.*bytes : 0});
  for (const auto& [expert, own] : of_expert)
    all = std::max({all, own.train.*bytes, own.first.*bytes, own.updates.*bytes});
  return all;
}

Program::Program(Plan plan, Schedule schedule) : plan(std::move(plan)), schedule(std::move(schedule)) {
  const auto& list = this->schedule.list;
  const auto exchange = [](const Instruction& in) { return in.op == Op::norm && in.unit < 0; };
  if (const auto found = std::find_if(list.begin(), list.end(), exchange); found != list.end())
    norm = static_cast<int>(found - list.begin());
}

Programs::Programs(const Plan& plan, RunSchedules schedules, bool samples)
    : arena(schedules.arena(samples)),
      host_arena(std::max(schedules.host_arena(samples), schedules.checkpoint.host_arena)) {
  const auto program_of = [](const Plan& of, Schedule& schedule) -> ProgramPtr {
    return schedule.list.empty() ? nullptr : std::make_shared<const Program>(of, std::move(schedule));
  };
  const auto program = [&](Schedule& schedule) { return program_of(plan, schedule); };
  train = program(schedules.train);
  sample = program(schedules.sample);
  checkpoint = program(schedules.checkpoint);
  first = program(schedules.first);
  updates = program(schedules.updates);
  for (auto& [expert, own] : schedules.of_expert) {
    const Plan of = plan.as_of(expert);
    of_expert[expert] = {program_of(of, own.train), program_of(of, own.first), program_of(of, own.updates)};
  }
}

}  // namespace tessera::plan
