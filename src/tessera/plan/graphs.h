#pragma once
// Whether training steps are graphs of the device (engine/graphs.h): what forbids it, and whether it gains anything.
//
//   const GraphsChoice graphs = choose_graphs(keys.graphs, planned.spec, plan, prediction.step.compute, "");
//   graphs.on; graphs.why;                // "on", "launches take the host 4.1 ms of a step, ..."
#include <optional>
#include <string>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// Why steps of the plan cannot be graphs: "an update runs on the host"; empty: they can.
std::string graphs_absence(const Plan& plan);
/// The same of a compiled training step, whose instructions before its norm would be the graph.
std::string graphs_absence(const Schedule& schedule, int norm);

struct GraphsChoice {
  bool on = false;
  bool asked = false;  ///< by plan.graphs; else chosen
  std::string why;     ///< with the gain of a step, or what forbids them
  double gain = 0;     ///< seconds of a step, at most [E]
};

/// `asked`: plan.graphs; without it they are on where launches take the host longer than the device takes for a step's work,
/// which is `computes` seconds. `forbidden`: by what the plan does not know ("adapters have dropout, ..."); empty: nothing.
GraphsChoice choose_graphs(std::optional<bool> asked, const ModelSpec& model, const Plan& plan, double computes,
                           const std::string& forbidden);

}  // namespace tessera::plan
