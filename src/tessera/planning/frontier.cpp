#include "tessera/planning/frontier.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/report/terminal_text.h"

namespace tessera::planning {

namespace {

/// A plan this near to the one with all memory is not searched for a faster one.
constexpr double kAsFast = 1e-3;

/// The plan with as much device memory as it likes.
Planned with_all_memory(PlanRequest request, MeasuredModels& known) {
  request.planner.budget = request.planner.host_budget = 0;
  request.planner.nvme = request.any_idle = false;
  return search_plan(request, known);
}

std::vector<int64_t> host_budgets(int64_t all) {
  std::vector<int64_t> budgets = {0};
  for (const int64_t parts : {4, 2, 1})
    if (all / parts > budgets.back()) budgets.push_back(all / parts);
  return budgets;
}

/// "1.26  13.0 s", in 15 columns for steps of up to some hours.
std::string cell(const Frontier& found, const FrontierPoint& point) {
  if (!point.fits) return "-";
  constexpr double kWhole = 1000;  // seconds without a digit after the point
  char ratio[16], seconds[32];
  std::snprintf(ratio, sizeof ratio, "%.2f  ", found.ratio(point));
  std::snprintf(seconds, sizeof seconds, "%.*f s", point.seconds < kWhole ? 1 : 0, point.seconds);
  return ratio + (point.seconds < 1 ? format_seconds(point.seconds) : seconds);
}

}  // namespace

std::vector<int64_t> frontier_devices(int64_t most) {
  std::vector<int64_t> sizes;
  constexpr int64_t kParts = 10;  // the least is a tenth
  constexpr int64_t kQuarters[] = {4, 5, 6};
  for (int64_t quarter = 1; quarter <= most / 4; quarter *= 2)
    for (const int64_t times : kQuarters)
      if (times * quarter >= most / kParts && times * quarter < most) sizes.push_back(times * quarter);
  sizes.push_back(most);
  return sizes;
}

Frontier find_frontier(const PlanRequest& asked, const std::function<void(int64_t, int64_t)>& told) {
  PlanRequest request = asked;
  request.planner.thrifty = false;  // the fastest: each point begins with the plans of less memory
  if (request.by_hand)
    throw UserError(Exit::usage, "plan.frontier", "plan.file fixes the plan: there is nothing to search",
                    "leave plan.file away, or set it to \"auto\"");
  check_mesh(request.mesh, *request.model, request.latent);
  MeasuredModels known;
  const Planned all = with_all_memory(request, known);
  Frontier found{.model = request.model_name,
                 .machine = all.machine.profile.name,
                 .mesh = request.mesh.to_string(),
                 .tokens = all.spec.all_tokens(),
                 .all_seconds = all.choice.seconds,
                 .all_bytes = all.choice.memory.peak,
                 .devices = {},
                 .hosts = host_budgets(request.planner.host_budget),
                 .grid = {}};
  const int64_t budget = request.planner.budget;
  found.devices = frontier_devices(budget > 0 ? std::min(budget, found.all_bytes) : found.all_bytes);
  PlanRequest most = request;
  most.planner.budget = found.devices.back();
  if (!search_plan(most, known).choice.fits)
    throw UserError(Exit::no_fit, "plan.frontier",
                    "nothing fits, not even with " + format_bytes(found.devices.back()) + " on the device and " +
                        format_bytes(found.hosts.back()) + " of the host",
                    "tessera plan RECIPE without --frontier says what would");
  const auto total = static_cast<int64_t>(found.hosts.size() * found.devices.size());
  if (told) told(0, total);
  std::vector<plan::Plan> plans;
  for (size_t h = 0; h < found.hosts.size(); ++h)
    for (size_t d = 0; d < found.devices.size(); ++d) {
      // The faster of the neighbours with less.
      std::optional<size_t> less;
      const size_t here = found.grid.size();
      for (const auto& [exists, at] : {std::pair(h > 0, here - found.devices.size()), {d > 0, here - 1}})
        if (exists && found.grid[at].fits && (!less || found.grid[at].seconds < found.grid[*less].seconds)) less = at;
      FrontierPoint point;
      plan::Plan plan;
      if (less) point = found.grid[*less], plan = plans[*less];
      point.device = found.devices[d], point.host = found.hosts[h];
      if (!less || found.ratio(point) > 1 + kAsFast) {
        PlanRequest with = request;
        with.planner.budget = point.device, with.planner.host_budget = point.host;
        if (less) with.planner.incumbent = plan;
        const Planned planned = search_plan(with, known);
        const plan::Choice& choice = planned.choice;
        const int64_t offloaded = choice.memory.host.total();  // of a tier set by hand, with no host memory
        if (choice.fits && offloaded <= point.host && (!less || choice.seconds < point.seconds)) {
          point.fits = true, point.seconds = choice.seconds;
          point.peak = choice.memory.peak, point.host_peak = offloaded;
          plan = choice.plan, point.plan = plan.summary();
        }
      }
      found.grid.push_back(std::move(point));
      plans.push_back(std::move(plan));
      if (told) told(static_cast<int64_t>(found.grid.size()), total);
    }
  return found;
}

std::string frontier_text(const Frontier& found) {
  constexpr size_t kFirst = 12, kShare = 8, kCell = 15;
  std::string text = "frontier of " + found.model + " on " + found.machine + "\nmesh " + found.mesh + ", " +
                     std::to_string(found.tokens) + " tokens a micro-batch\n1.00 is a step of " +
                     format_seconds(found.all_seconds) + " with all in device memory, " +
                     format_bytes(found.all_bytes) + " a rank\n";
  std::string head = report::in_column("device", kFirst) + report::in_column("of all", kShare);
  for (const int64_t host : found.hosts)
    head += report::in_column(host == 0 ? "host: none" : format_bytes(host), kCell);
  const auto line = [](std::string row) { return row.erase(row.find_last_not_of(' ') + 1) + "\n"; };
  text += line(head);
  for (size_t d = 0; d < found.devices.size(); ++d) {
    const double share = 100 * static_cast<double>(found.devices[d]) / static_cast<double>(found.all_bytes);
    char percent[16];
    std::snprintf(percent, sizeof percent, "%.0f %%", share);
    std::string row = report::in_column(format_bytes(found.devices[d]), kFirst) + report::in_column(percent, kShare);
    for (size_t h = 0; h < found.hosts.size(); ++h) row += report::in_column(cell(found, found.at(h, d)), kCell);
    text += line(row);
  }
  return text + "-: no plan of these budgets was found\n";
}

std::string frontier_json(const Frontier& found) {
  using FrontierJson = nlohmann::ordered_json;
  FrontierJson points = FrontierJson::array();
  for (const FrontierPoint& point : found.grid) {
    FrontierJson entry = {{"device_budget", point.device}, {"host_budget", point.host}, {"fits", point.fits}};
    if (point.fits) {
      entry["seconds"] = point.seconds, entry["ratio"] = found.ratio(point);
      entry["peak_bytes"] = point.peak, entry["host_bytes"] = point.host_peak;
      entry["plan"] = point.plan;
    }
    points.push_back(std::move(entry));
  }
  return FrontierJson{{"model", found.model},
                      {"machine", found.machine},
                      {"mesh", found.mesh},
                      {"tokens", found.tokens},
                      {"all_memory", {{"seconds", found.all_seconds}, {"peak_bytes", found.all_bytes}}},
                      {"points", points}}
      .dump(2);
}

}  // namespace tessera::planning
