#pragma once
// What a rank of a mesh has for a plan: budgets and samples, and the memory and seconds of its encoders. Requests for other
// meshes, which advice and layouts plan, have those of theirs: NCCL connects other bytes under another mesh, and a node's host
// memory is divided among other numbers of ranks.
//
//   const std::optional<PlanRequest> there = on_mesh(request, Mesh::parse("cp=8"));
#include "tessera/job/job.h"
#include "tessera/planning/planning.h"

namespace tessera::planning {

/// `encoders`: on `mesh`. `sent_by`: of the job; asked where the budget of a GPU is not given.
RankShare rank_share(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                     const plan::Profile& profile, const EncoderBytes& encoders, const UnitGroups& sent_by);

/// Gives the request's ranks this share; false where host memory has no room for their encoders.
bool set_share(PlanRequest& request, const RankShare& share);

/// The request on another mesh; empty where set_share() is false.
std::optional<PlanRequest> on_mesh(PlanRequest request, const Mesh& mesh);

}  // namespace tessera::planning
