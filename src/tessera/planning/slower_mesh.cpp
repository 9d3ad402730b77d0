#include "tessera/planning/slower_mesh.h"

#include <algorithm>
#include <optional>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/planning/rank_share.h"

namespace tessera::planning {

namespace {

constexpr double kCounts = 0.05;  // a smaller share of a step is within what predictions are off by

/// Seconds of the step on `mesh`: first of a plan without limits, which no other plan of it is faster than, then of the
/// first that fits; empty where either is no faster than `limit`.
std::optional<double> faster_on(const PlanRequest& request, const Mesh& mesh, double limit) {
  const std::optional<PlanRequest> tried = on_mesh(request, mesh);
  if (!tried) return std::nullopt;
  plan::PlannerInput input = tried->planner;
  if (request.any_micro_batch) input.micro_batch = 1;
  plan::Plan batch;
  batch.mesh = mesh, batch.global_batch = input.global_batch, batch.micro_batch = input.micro_batch;
  MeasuredModels known;
  const plan::Measured measured = measure_batch(*tried, batch, known);
  static_cast<plan::Choices&>(input) = {};
  input.first_that_fits = true, input.incumbent.reset();
  plan::PlannerInput unlimited = input;
  unlimited.budget = unlimited.host_budget = 0;
  if (plan::choose(measured.model, mesh, unlimited, measured.machine).seconds >= limit) return std::nullopt;
  const plan::Choice choice = plan::choose(measured.model, mesh, input, measured.machine);
  if (!choice.fits || choice.fastest >= limit) return std::nullopt;
  return choice.fastest;
}

}  // namespace

std::string slower_mesh(const PlanRequest& request, const Planned& planned) {
  const int ranks = request.mesh.world();
  if (request.by_hand || request.planner.first_that_fits || !planned.choice.fits || ranks == 1) return {};
  Mesh plain;
  plain[Axis::dp_shard] = ranks;
  std::vector<Mesh> others = {Mesh{}};
  if (plain != request.mesh && request.planner.global_batch >= ranks) others.push_back(plain);
  double fastest = planned.choice.fastest * (1 - kCounts);
  std::optional<Mesh> found;
  for (const Mesh& mesh : others)
    if (const std::optional<double> seconds = faster_on(request, mesh, fastest)) fastest = *seconds, found = mesh;
  if (!found) return {};
  const auto [there, here] = format_distinct_seconds(fastest, planned.choice.seconds);
  return request.mesh.to_string() + " is predicted to be slower than " +
         (found->world() == 1 ? "one rank" : found->to_string()) + " with the same batch: " + here + " a step, not " +
         there;
}

}  // namespace tessera::planning
