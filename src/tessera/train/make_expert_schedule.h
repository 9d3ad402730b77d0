#pragma once
// How the experts of a job share its steps.
//
//   auto experts = make_expert_schedule(job, recipe, data, comm, mesh, rank);
#include "tessera/train/expert_schedule.h"

namespace tessera::train {

/// A schedule by noise level, or a gate that chooses for each sample. All arguments but `mesh` outlive it.
std::unique_ptr<ExpertSchedule> make_expert_schedule(const job::Job& job, const recipe::Recipe& recipe,
                                                     const std::vector<prepare::StageData>& data, comm::Comm& comm,
                                                     const Mesh& mesh, int rank);

}  // namespace tessera::train
