#include <algorithm>

#include "tessera/base/mesh.h"
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::plan {

Draft::Draft(const ModelSpec& model, const Plan& plan, int rank, std::string phase, CompiledFor compiled_for)
    : model(model),
      plan(plan),
      rank(rank),
      dp_rank(plan.mesh.dp_rank(rank)),
      pp_rank(plan.mesh.coordinate(rank, Axis::pp)),
      backward_from(plan::backward_from(model, plan)),
      for_memory(compiled_for == CompiledFor::memory),
      outer(group_name("reduce_outer", {Axis::dp_replicate})),
      world(group_name("control", {kAllAxes.begin(), kAllAxes.end()})),
      sizes(compiled_for == CompiledFor::frozen ? UnitSizes(model, plan, rank).frozen() : UnitSizes(model, plan, rank)),
      arena(!for_memory),
      host(!for_memory),
      disk(!for_memory) {
  schedule.phase = std::move(phase);
  names_.reserve(model.units.size());
  for (const UnitSpec& unit : model.units) names_.emplace_back(unit.name);
  for (int u = 0; u < static_cast<int>(model.units.size()); ++u)
    if (plan.owns(rank, u)) own.push_back(u);
}

Instruction Draft::make(Op op, Lane lane, int unit, int micro) const {
  Instruction in;
  in.op = op, in.lane = lane, in.unit = unit, in.micro = micro;
  if (unit >= 0) in.name = names_[unit];
  return in;
}

Instruction Draft::make(Op op, Lane lane, int unit, int micro, Part part, int64_t bytes, Waits wait) const {
  Instruction in = make(op, lane, unit, micro);
  in.part = part, in.bytes = bytes, in.wait = std::move(wait);
  return in;
}

int Draft::add(Instruction in) {
  if (for_memory) {
    in.wait.clear();
  } else {
    std::sort(in.wait.begin(), in.wait.end());
    in.wait.erase(std::unique(in.wait.begin(), in.wait.end()), in.wait.end());
  }
  schedule.list.push_back(std::move(in));
  return static_cast<int>(schedule.list.size()) - 1;
}

void Draft::retire(std::deque<Flight>& flights, size_t bound) {
  for (; flights.size() > bound; flights.pop_front())
    for (const RangeUse& use : flights.front()) arena.give(use.at, use.last);
}

const GroupName& Draft::group_name(const std::string& purpose, const std::vector<Axis>& axes) const {
  const auto known = std::ranges::find_if(
      groups_, [&](const KnownGroup& other) { return other.purpose == purpose && other.axes == axes; });
  if (known != groups_.end()) return known->group;
  std::string axis, name;
  for (Axis a : axes)
    if (plan.mesh[a] > 1) axis += (axis.empty() ? "" : "+") + std::string(axis_name(a));
  if (!axis.empty()) name = purpose + ":" + axis + "[" + RankGrid(plan.mesh, rank, axes).text() + "]";
  return groups_.emplace_back(KnownGroup{purpose, axes, {axis, name}}).group;
}

const GroupName& Draft::buffer_group(const char* purpose, const Buffer& buffer) const {
  for (const GroupOfBuffers& known : groups_of_buffers_)  // every gather and reduction asks: without new strings
    if (known.sharded == (buffer.shards > 1) && known.over_tp == buffer.over_tp && known.purpose == purpose)
      return *known.group;
  const GroupName& group = group_name(purpose, plan.axes(buffer));
  groups_of_buffers_.push_back({purpose, buffer.shards > 1, buffer.over_tp, &group});
  return group;
}

void Draft::collect(Instruction& in, const char* purpose, Symbol kind, Gathered buffers, int64_t element) const {
  if (for_memory) return;
  for (const Buffer& buffer : sizes.layout(in.unit).buffers) {
    if (buffer.shards == 1 || (buffers == Gathered::trained && !buffer.trainable)) continue;
    const GroupName& group = buffer_group(purpose, buffer);
    if (buffer.in_codes && in.codes != Codes::none) {  // of rows, then of columns: scales, then codes
      for (const int columns : {0, 1}) {
        if (!(columns ? has_columns(in.codes) : has_rows(in.codes))) continue;
        for (const int64_t share : {buffer.lines[static_cast<size_t>(columns)].most * 4, buffer.shard})
          in.comm.push_back({group.axis, kind, share * (buffer.shards - 1), group.name});
      }
      continue;
    }
    const int64_t share =
        buffer.stored == DType::f32 ? buffer.shard * element : stored_bytes(buffer.stored, buffer.shard);
    in.comm.push_back({group.axis, kind, share * (buffer.shards - 1), group.name});
  }
  if (!in.comm.empty()) in.group = in.comm.front().group;
}

void Draft::declare(Instruction& in, const std::vector<Traffic>& traffic) const {
  if (for_memory) return;
  for (const Traffic& t : traffic) {
    if (!t.several(plan.mesh)) continue;
    const GroupName& group = group_name(t.purpose, t.axes);
    in.comm.push_back({group.axis, t.kind, t.bytes(tokens(in.micro), plan.mesh, rank, samples(in.micro)), group.name});
  }
  if (!in.comm.empty()) in.group = in.comm.front().group;
}

}  // namespace tessera::plan
