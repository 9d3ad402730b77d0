#include "tessera/plan/search/candidate.h"

#include <algorithm>

#include "tessera/base/units.h"

namespace tessera::plan {

namespace {

std::string updates(const Plan& plan) {
  std::string text = plan.update == Update::just_in_time  ? "just in time"
                     : plan.update == Update::in_backward ? "in backward"
                                                          : "";
  if (std::any_of(plan.units.begin(), plan.units.end(), [](const UnitPlan& u) { return u.update_on == Tier::host; }))
    text += std::string(text.empty() ? "" : " and ") + "on the host";
  return text;
}

}  // namespace

int64_t over_device(const PlannerInput& input, const Candidate& candidate) {
  return input.budget > 0 ? candidate.peak - input.budget : 0;
}

int64_t over_host(const PlannerInput& input, const Candidate& candidate) {
  return input.host_budget > 0 ? candidate.host - input.host_budget : 0;
}

std::string describe_gain(const Candidate& moved, double before) {
  const auto [now, waited] = format_distinct_seconds(moved.seconds, before);
  if (now == waited) return {};  // equal times: nothing to report
  return "; its updates " + updates(moved.plan) + " make a step " + now + " instead of " + waited;
}

Shortage shortage_of(const PlannerInput& input, const std::vector<Candidate>& tried) {
  Shortage shortage;
  for (const Candidate& c : tried) {
    if (shortage.device == 0 || c.peak < shortage.device) shortage.device = c.peak;
    if (shortage.both == 0 || c.peak + c.host < shortage.both) shortage.both = c.peak + c.host;
  }
  shortage.infeasible = (input.budget > 0 && shortage.device > input.budget) ||
                        (input.host_budget > 0 && !input.nvme && shortage.both > input.budget + input.host_budget);
  return shortage;
}

std::string describe(const Shortage& shortage, const PlannerInput& input) {
  const std::string least = shortage.device > input.budget
                                ? format_bytes(shortage.device) + " of device memory a rank"
                                : format_bytes(shortage.both) + " of device and host memory a rank together";
  if (shortage.infeasible) return "infeasible: every plan with these settings needs at least " + least + "; ";
  return "not found: a plan within the budgets may exist (it needs at least " + least +
         "), but no plan that was tried stays within both; ";
}

std::string describe_shortage(const PlannerInput& input, const Candidate& smallest, const MemoryParts& held) {
  const std::string host = " needs " + format_bytes(smallest.host) +
                           " of host memory a rank, and its share of plan.host_budget is " +
                           format_bytes(input.host_budget);
  const bool lacks_host = over_host(input, smallest) > 0;
  if (lacks_host && over_device(input, smallest) <= 0)  // the device budget is not the problem
    return "the smallest plan" + host + "; on the device it takes " + format_bytes(smallest.peak) + ", which fits";
  return "the smallest plan needs " + format_bytes(smallest.peak) + " a rank and plan.budget is " +
         format_bytes(input.budget) + ": parameters " + format_bytes(held.parameters) + ", gradients " +
         format_bytes(held.gradients) + ", optimiser states " + format_bytes(held.states) + ", slots " +
         format_bytes(held.slots) + ", activations " + format_bytes(held.activations + held.temporaries) +
         (lacks_host ? "; it" + host : "");
}

}  // namespace tessera::plan
