#include "tessera/plan/device_groups.h"

#include <algorithm>

#include "tessera/plan/optimizers.h"

namespace tessera::plan {

namespace {

const std::vector<Axis> kCpSpAxes = {Axis::cp, Axis::sp};

bool several(const std::vector<Axis>& axes, const Mesh& mesh) {
  return std::ranges::any_of(axes, [&](Axis axis) { return mesh[axis] > 1; });
}

/// Of a forward's predictions, whose rows each rank of a sequence then has.
const DeviceGroup& predictions() {
  static const DeviceGroup group = {"tokens", kSequenceAxes};
  return group;
}

}  // namespace

std::vector<DeviceGroup> unit_groups(const ModelSpec& model, const Mesh& mesh) {
  std::vector<DeviceGroup> groups;
  const auto add = [&](const std::vector<Traffic>& traffic) {
    for (const Traffic& t : traffic) {
      const DeviceGroup group = {t.purpose, t.axes};
      if (t.several(mesh) && std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
    }
  };
  for (const UnitSpec& unit : model.units) {
    add(unit.cost.traffic), add(unit.cost.backward_traffic);
    for (const auto& [sites, replay] : unit.cost.replays) add(replay.traffic);
  }
  if (several(predictions().axes, mesh)) groups.push_back(predictions());
  return groups;
}

std::vector<DeviceGroup> any_unit_groups(const Mesh& mesh) {
  std::vector<DeviceGroup> groups = {
      {"sequence", {Axis::sp}},  {"ring", {Axis::cp}}, {"blocks", {Axis::cp}},   {"tensor", {Axis::tp}},
      {"norms", {Axis::tp}},     {"reach", kCpSpAxes}, {"reach", kSequenceAxes}, {"states", kCpSpAxes},
      {"states", kSequenceAxes}, predictions()};
  std::erase_if(groups, [&](const DeviceGroup& group) { return !several(group.axes, mesh); });
  return groups;
}

std::vector<DeviceGroup> buffer_groups(const Plan& plan, const Buffer& buffer) {
  std::vector<DeviceGroup> groups;
  if (buffer.shards > 1) groups.push_back({"gather", plan.axes(buffer)});
  if (buffer.shards > 1 && buffer.trainable) {
    groups.push_back({"reduce", plan.axes(buffer)});
    groups.push_back({"reduce_outer", plan.outer_axes(buffer)});
  }
  if (buffer.shards == 1 && buffer.trainable) groups.push_back({"reduce_whole", plan.axes(buffer)});
  if (buffer.partitions > 1) groups.push_back({"gather_outer", plan.outer_axes(buffer)});
  if (buffer.trainable && row(plan.states.optimizer).whole) groups.push_back({kMatrices, sum_axes(plan, buffer)});
  return groups;
}

}  // namespace tessera::plan
