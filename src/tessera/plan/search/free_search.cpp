// What a search without the user's settings would find.
#include "tessera/base/units.h"
#include "tessera/plan/search/planner.h"

namespace tessera::plan {

namespace {

/// The planner keeps settings of the user; it warns if its own choice would be faster by more than this share.
constexpr double kMinReportedGain = 0.02;

}  // namespace

bool set_by_hand(const PlannerInput& input) { return static_cast<const Choices&>(input) != Choices{}; }

std::string slower_by_hand(const ModelSpec& model, const Mesh& mesh, PlannerInput input, const Machine& machine,
                           double seconds) {
  static_cast<Choices&>(input) = {}, input.rungs = 0;
  const Choice free = choose(model, mesh, input, machine);
  if (!free.fits || free.seconds >= seconds * (1 - kMinReportedGain)) return {};
  const auto [would, takes] = format_distinct_seconds(free.seconds, seconds);
  return "a step of this plan, with its keys set by hand, takes " + takes + "; \"" + free.plan.summary() +
         "\" would take " + would + " and fits (leave plan.* on auto for it)";
}

}  // namespace tessera::plan
