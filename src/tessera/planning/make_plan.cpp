#include "tessera/planning/make_plan.h"

#include "tessera/base/units.h"
#include "tessera/planning/plan_advice.h"
#include "tessera/planning/slower_mesh.h"

namespace tessera::planning {

Planned make_plan(const PlanRequest& request) {
  Planned planned = make_plan_as_is(request);
  if (!planned.choice.fits) {
    const Advice changes = advice(request);
    planned.choice.evaluated += changes.evaluated;
    planned.choice.advice +=
        !changes.text.empty() ? ". It fits " + changes.text
                              : ". No plan was found with other micro-batches, smaller formats, more host memory, "
                                "more ranks or fewer frames: raise plan.budget and use more ranks (--mesh dp_shard=" +
                                    std::to_string(2 * request.mesh.shard_size()) + ") together";
  }
  for (const std::string& warning :
       {advice_without_disk(request, planned), useless_grad_dtype(planned), useless_offload_to(request, planned),
        useless_prefetch(request, planned), useless_update_threads(request, planned), slower_mesh(request, planned)})
    planned.warn(warning);
  return planned;
}

void hold_prepare(const PlanRequest& request, Planned& planned) {
  const int64_t budget = request.planner.budget, peak = request.encoders.prepare();
  if (!request.prepare_peak || budget <= 0 || peak <= budget) return;
  constexpr int64_t kStep = int64_t{1} << 20;
  int64_t enough = round_up(budget, kStep);  // set in the recipe, it moves weights of encoders to the host
  for (int64_t takes = 0; (takes = request.prepare_peak(enough)) > enough;) enough = round_up(takes, kStep);
  planned.choice.advice += (planned.choice.fits ? "" : "; ") +
                           ("prepare, which encodes captions and clips before the steps, takes " + format_bytes(peak) +
                            " a rank at its peak, the budget is " + format_bytes(budget) +
                            ". It fits with plan.budget = " + std::to_string(enough / kStep) + "MiB");
  planned.choice.fits = false;
}

}  // namespace tessera::planning
