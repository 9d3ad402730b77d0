#include "tessera/sample/expert_passes.h"

namespace tessera::sample {

RunBranches expert_passes(const job::Job& job, const job::GateRouter* router, engine::Store& store,
                          engine::Executor& executor, const plan::Schedule& schedule, int64_t step) {
  return [&, router, step](const std::vector<net::Batch>& batches, double t, const at::Tensor& context) {
    const auto run = [&](size_t expert) {
      store.switch_to(static_cast<int>(expert));
      return executor.forward(schedule, step, batches);
    };
    return router ? router->predict(t, context, run) : run(job.experts.serving(t));
  };
}

}  // namespace tessera::sample
