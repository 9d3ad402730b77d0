#pragma once
// The groups of ranks that send each other what lies on devices. A communicator takes memory of each for those that it
// connects (base/device_messages.h), so a run connects these alone, before its first step, and a plan counts them.
//
//   for (const DeviceGroup& group : unit_groups(model, mesh)) comm.group(group.purpose, group.axes).connect();
//   for (const DeviceGroup& group : buffer_groups(plan, buffer)) ...
#include <string>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

struct DeviceGroup {
  std::string purpose;  ///< of the communicator's name: "gather"
  std::vector<Axis> axes;
  bool operator==(const DeviceGroup&) const = default;
};

/// Of the collectives inside the units of `model`, which was measured for `mesh`, and of its predictions: each once, in an
/// order that all ranks have.
std::vector<DeviceGroup> unit_groups(const ModelSpec& model, const Mesh& mesh);
/// The same where the model is not known: all that any has.
std::vector<DeviceGroup> any_unit_groups(const Mesh& mesh);

/// Of a buffer's parameters and gradients.
std::vector<DeviceGroup> buffer_groups(const Plan& plan, const Buffer& buffer);

}  // namespace tessera::plan
