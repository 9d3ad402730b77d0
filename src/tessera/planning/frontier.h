#pragma once
// The frontier of a job: how much slower a step becomes with less device memory, with host memory as curves. Each point is
// a plan of the search with these budgets.
//
//   const Frontier found = find_frontier(request);
//   std::fputs(frontier_text(found).c_str(), stdout);
//   checkpoint::write_text("frontier.svg", frontier_svg(found));
//
// [Note: more is never slower] Points are planned from little memory to much. Each begins with the faster of its two
// neighbours' plans, the one of less device memory and the one of less host memory, both of which fit it as they are.
#include <functional>
#include <string>
#include <vector>

#include "tessera/planning/planning.h"

namespace tessera::planning {

struct FrontierPoint {
  int64_t device = 0, host = 0;  ///< budgets of a rank, bytes; host 0: nothing may be offloaded
  bool fits = false;
  double seconds = 0;               ///< of a step; the others too only where it fits
  int64_t peak = 0, host_peak = 0;  ///< what the plan takes of them
  std::string plan;                 ///< its summary
};

struct Frontier {
  std::string model, machine, mesh;
  int64_t tokens = 0;               ///< of the largest micro-batch
  double all_seconds = 0;           ///< of a step with as much device memory as it likes, and nothing offloaded
  int64_t all_bytes = 0;            ///< what that takes
  std::vector<int64_t> devices;     ///< the budgets, least first
  std::vector<int64_t> hosts;       ///< likewise: a curve each
  std::vector<FrontierPoint> grid;  ///< for each of `hosts` one for each of `devices`

  const FrontierPoint& at(size_t host, size_t device) const { return grid[host * devices.size() + device]; }
  /// A point's seconds over those with all memory: 1 is as fast as it gets.
  double ratio(const FrontierPoint& point) const { return point.seconds / all_seconds; }
};

/// Round sizes (1, 1.25 and 1.5 times powers of two) from a tenth of `most` bytes on, then `most` itself.
std::vector<int64_t> frontier_devices(int64_t most);

/// Plans the request with a row of device budgets up to its own (or to what the fastest plan takes, if that is less), and
/// with none, a quarter, half and all of its host memory. `told(done, of)` hears before the first and
/// after each plan. Throws UserError (usage) for a
/// request with a plan file, and (no_fit) if not even all of the memory is enough for a plan.
Frontier find_frontier(const PlanRequest& request, const std::function<void(int64_t, int64_t)>& told = {});

/// As a table for a terminal of 80 columns: a row for each device budget, a column for each host budget.
std::string frontier_text(const Frontier& found);
/// {"model","machine","mesh","tokens","all_memory":{"seconds","peak_bytes"},
///  "points":[{"device_budget","host_budget","fits","seconds","ratio","peak_bytes","host_bytes","plan"}]}
std::string frontier_json(const Frontier& found);
/// The curves as a picture of its own.
std::string frontier_svg(const Frontier& found);
/// The same picture with its table, as a page.
std::string frontier_page(const Frontier& found);

}  // namespace tessera::planning
