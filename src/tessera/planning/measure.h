#pragma once
// What a request's model takes and does on a rank, of meta tensors: the model of steps, of forward mode, of judging heads and
// of a teacher of other sizes, each by the samples of a micro-batch. No plan is known yet.
//
//   MeasuredModels known;                                                   // of this model, mesh and computing dtype
//   const plan::Measured model = measure_batch(request, batch, known);      // spec and work of its units
//   Planned planned = measured(request, batch, known);                      // with all that a plan is predicted of
#include <functional>
#include <optional>
#include <vector>

#include "tessera/planning/planned.h"

namespace tessera::planning {

/// Samples of a micro-batch at most: rows of tables are listed by sample.
inline constexpr int64_t kMostSamples = 1 << 14;

/// What meta tensors stand for while a plan for `profile` is measured (ops/session.h).
std::optional<Target> measured_target(const plan::Profile& profile);

/// The model and its work on one rank of the request's mesh, for micro-batches of `samples`. Memory is that of the profile's
/// target, where it has one.
plan::Measured measure_model(const PlanRequest& request, int64_t samples);
/// plan::lasting_bytes_exceed_memory() of the request, before anything is measured.
bool keeps_more_than_memory(const PlanRequest& request);

/// plan::unit_groups() of the job on any mesh: the model is measured once for each way of sharing tokens. Refers to `job`.
using UnitGroups = std::function<std::vector<plan::DeviceGroup>(const Mesh&)>;
UnitGroups unit_groups(const recipe::Recipe& recipe, const job::Job& job);

/// The model for all micro-batches of `batch`, of which only the numbers of samples and ranks are read; with those that
/// end a rank's share. (Where steps have other batches, these divide theirs otherwise, so that all count as the largest.)
plan::Measured measure_batch(const PlanRequest& request, const plan::Plan& batch, MeasuredModels& known);

/// A Planned measured for the micro-batches of `batch`, without a plan yet.
Planned measured(const PlanRequest& request, const plan::Plan& batch, MeasuredModels& known);

}  // namespace tessera::planning
