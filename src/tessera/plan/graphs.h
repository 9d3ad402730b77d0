#pragma once
// Whether training steps are graphs of the device (engine/graphs.h): what forbids it, and whether it gains anything.
//
//   const GraphsChoice graphs = choose_graphs(keys.graphs, planned.spec, plan, prediction.step.compute, "");
//   graphs.on; graphs.why;                // "on", "launches take the host 4.1 ms of a step, ..."
#include <optional>
#include <string>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// Why steps of the plan cannot be graphs: "an update runs on the host"; empty: they can. The same on all ranks.
std::string graphs_absence(const Plan& plan);
/// The same of a rank's compiled training step, whose instructions before its norm would be the graph.
std::string graphs_absence(const Schedule& schedule, int norm);

/// Driver's memory of the device for a node of a graph: about 10 KiB, which CCCL reckons with for its cached graphs (NVIDIA/cccl#3768).
/// A driver of 2021 took 66 KB (forums.developer.nvidia.com/t/244901). [E]
inline constexpr int64_t kNodeBytes = 10 << 10;
/// Graphs that a run keeps: so many forms of steps, and so many bytes of them unless one alone is larger.
inline constexpr int64_t kMostGraphs = 16, kGraphsBytes = int64_t{512} << 20;

struct GraphsChoice {
  bool on = false;
  bool asked = false;  ///< by plan.graphs; else chosen
  std::string why;     ///< with the gain of a step, or what forbids them
  double gain = 0;     ///< seconds of a step, at most [E]
  int64_t bytes = 0;   ///< of the driver for as many forms as are kept, beside the plan [E]
};

/// `asked`: plan.graphs; without it they are on where launches take the host longer than the device takes for a step's work,
/// which is `computes` seconds. `forbidden`: by what the plan does not know ("adapters have dropout, ..."); empty: nothing.
GraphsChoice choose_graphs(std::optional<bool> asked, const ModelSpec& model, const Plan& plan, double computes,
                           const std::string& forbidden);

}  // namespace tessera::plan
