#include "tessera/planning/plan_layouts.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/rank_share.h"

namespace tessera::planning {

namespace {

constexpr size_t kShown = 12;

std::string in_column(std::string text, size_t width) {
  text.resize(std::max(width, text.size() + 2), ' ');
  return text;
}

std::string layout_row(const plan::Layout& layout) {
  const plan::Choice& c = layout.choice;
  const std::string plan = c.plan.summary();
  return in_column(layout.mesh.to_string(), 40) + in_column(c.fits ? format_seconds(c.seconds) : "does not fit", 16) +
         in_column(format_bytes(c.memory.peak), 12) + in_column(format_bytes(c.memory.host.total()), 12) +
         plan.substr(0, plan.find(", global batch")) + "\n";
}

}  // namespace

Layouts find_layouts(const PlanRequest& request) {
  plan::LayoutBounds bounds = layout_bounds(*request.model, request.latent);
  bounds.world = request.mesh.world();
  bounds.node = request.machine.profile.devices;
  plan::PlannerInput input = request.planner;
  if (request.any_micro_batch) input.micro_batch = 1;
  // Cost and memory of a rank depend on how tokens and features are shared, not on the other dp ranks, but for encoders.
  std::map<std::array<int64_t, 4>, MeasuredModels> known;
  const auto measured_on = [&](const Mesh& mesh) {
    PlanRequest there = on_mesh(request, mesh).value();  // as many ranks: encoders on the host take as much
    there.mesh = Mesh{};
    for (Axis axis : plan::kSequenceAxes) there.mesh[axis] = mesh[axis];
    plan::Plan batch;
    batch.mesh = mesh, batch.global_batch = input.global_batch, batch.micro_batch = input.micro_batch;
    plan::Measured measured =
        measure_batch(there, batch, known[{mesh[Axis::cp], mesh[Axis::sp], mesh[Axis::tp], there.of_mesh}]);
    measured.machine.beside = there.machine.beside;
    return plan::OnMesh{std::move(measured), there.planner.budget, there.planner.host_budget};
  };
  Layouts found{bounds.world, input.global_batch, input.micro_batch, plan::search_layouts(bounds, input, measured_on)};
  if (found.list.empty())
    throw UserError(Exit::usage, "plan.layouts",
                    "no mesh of " + std::to_string(bounds.world) + " ranks takes a global batch of " +
                        std::to_string(input.global_batch),
                    "give train.global_batch more samples, or fewer ranks");
  return found;
}

std::string layouts_text(const Layouts& found) {
  std::string text = "layouts of " + std::to_string(found.world) + " ranks, global batch " +
                     std::to_string(found.global_batch) + " in micro-batches of " + std::to_string(found.micro_batch) +
                     ": " + std::to_string(found.list.size()) + " tried, the fastest first\n" + in_column("mesh", 40) +
                     in_column("a step", 16) + in_column("device", 12) + in_column("host", 12) + "plan\n";
  for (size_t i = 0; i < std::min(kShown, found.list.size()); ++i) text += layout_row(found.list[i]);
  const plan::Layout& first = found.list.front();
  if (first.choice.fits) text += "use --mesh " + first.mesh.to_string() + "\n";
  return text;
}

std::string layouts_json(const Layouts& found) {
  using LayoutJson = nlohmann::ordered_json;
  LayoutJson list = LayoutJson::array();
  for (const plan::Layout& layout : found.list) {
    LayoutJson mesh = LayoutJson::object();
    for (Axis axis : kAllAxes) mesh[std::string(axis_name(axis))] = layout.mesh[axis];
    const plan::Choice& c = layout.choice;
    list.push_back({{"mesh", mesh},
                    {"fits", c.fits},
                    {"seconds", c.seconds},
                    {"peak_bytes", c.memory.peak},
                    {"host_bytes", c.memory.host.total()},
                    {"plan", c.plan.summary()}});
  }
  const LayoutJson json = {{"ranks", found.world},
                           {"global_batch", found.global_batch},
                           {"micro_batch", found.micro_batch},
                           {"layouts", list}};
  return json.dump(2);
}

}  // namespace tessera::planning
