#include "tessera/train/make_expert_schedule.h"

#include "tessera/train/gate_schedule.h"

namespace tessera::train {

std::unique_ptr<ExpertSchedule> make_expert_schedule(const job::Job& job, const recipe::Recipe& recipe,
                                                     const std::vector<prepare::StageData>& data, comm::Comm& comm,
                                                     const Mesh& mesh, int rank) {
  if (job.experts.gated) return std::make_unique<GateSchedule>(job, recipe, data, comm, mesh, rank);
  return std::make_unique<ExpertSchedule>(job.experts, recipe, data, rank);
}

}  // namespace tessera::train
