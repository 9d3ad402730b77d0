#include "tessera/sample/expert_passes.h"

namespace tessera::sample {

RunBranches expert_passes(const job::Job& job, const job::GateRouter* router, engine::Engine& engine,
                          const plan::ProgramPtr& program, int64_t step) {
  return [&job, &engine, router, program, step](const std::vector<net::Batch>& batches, double t,
                                                const at::Tensor& context) {
    const auto run = [&](size_t expert) {
      engine.swap(expert);
      return engine.forward(program, batches, step);
    };
    return router ? router->predict(t, context, run) : run(job.experts.serving(t));
  };
}

}  // namespace tessera::sample
