#include "tessera/planning/make_plan.h"

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

}  // namespace tessera::planning
