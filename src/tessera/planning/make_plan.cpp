#include "tessera/planning/make_plan.h"

#include "tessera/planning/plan_advice.h"

namespace tessera::planning {

Planned make_plan(const PlanRequest& request) {
  Planned planned = make_plan_as_is(request);
  if (!planned.choice.fits) {
    const std::string way_out = advice(request);
    planned.choice.advice += !way_out.empty() ? ". What fits: " + way_out
                                              : "; no change of micro-batch, host memory, ranks or frames alone makes "
                                                "it fit: raise plan.budget and use more "
                                                "ranks (--mesh dp_shard=" +
                                                    std::to_string(2 * request.mesh.shard_size()) + ") together";
  }
  for (const std::string& said :
       {without_the_disk(request, planned), nothing_to_round(planned), nothing_to_offload(request, planned),
        nothing_to_fetch(request, planned), nothing_on_the_host(request, planned)})
    planned.warn(said);
  return planned;
}

}  // namespace tessera::planning
