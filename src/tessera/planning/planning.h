#pragma once
// From a model and the shapes of its data to the plan and the schedules of every rank. `tessera plan` and `tessera
// train` both call this, so both use the same plan.
//
//   Planned planned = make_plan_as_is(request);                // plan_request.h adds advice
//   planned.schedules(rank).train;
#include <string>

#include "tessera/planning/planned.h"

namespace tessera::planning {

/// The plan that the search finds, over all sizes of micro-batches allowed; a plan file and warnings apart. `known` gains
/// what is measured, so that plans of the same request with other budgets measure nothing again.
Planned search_plan(const PlanRequest& request, MeasuredModels& known);

/// Measures the model, chooses (or takes) the plan and simulates it.
Planned make_plan_as_is(const PlanRequest& request);

/// With experts.share: passes of two experts run side by side (Plan::together) if all can, the mean step is shorter by a per
/// cent, and memory holds it. Else `planned.apart` says why not. Behind plan_by_use.
void plan_together(Planned& planned, const PlanRequest& request);
/// With experts.by_use: the plans beside the chosen one by which an expert's passes may run, into `planned.by_use`. Their
/// micro-batches are smaller, so that one with fewer samples than these in a pass keeps more of its activations; all else is
/// the chosen plan's, and each fits the budgets. None where the user has set the micro-batch or the plan. With any hard gate:
/// measures micro-batches of fewer samples, which passes have.
void plan_by_use(Planned& planned, const PlanRequest& request);
/// `by_use` as text, with its prices, for other ranks.
std::string by_use_text(const Planned& planned);

/// The request with a plan that another rank found for it, as text (Plan::to_toml), and with its by_use_text: the model is
/// measured, nothing is searched or simulated. Throws UserError (no_fit) where the budgets of `rank`, this one, are less
/// than the plan needs.
Planned take_plan(const PlanRequest& request, const std::string& plan, int rank, const std::string& by_use = {});

/// Simulates planned.choice.plan: time, memory, whether it fits, and advice if it does not.
void evaluate(Planned& planned, const PlanRequest& request);

}  // namespace tessera::planning
