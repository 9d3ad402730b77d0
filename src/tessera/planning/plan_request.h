#pragma once
// Converts a recipe into a request to the planner.
//
//   const PlanRequest request = plan_request(recipe, job, shapes, mesh, prompts);
//   make_plan(request);
#include "tessera/comm/rendezvous.h"
#include "tessera/job/job.h"
#include "tessera/planning/planning.h"

namespace tessera::planning {

/// The planner's input for the job, to which it refers, in the shapes of `recipe`. `prompts`: number of sampled prompts.
PlanRequest plan_request(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                         int prompts);

/// Of `latents` [C, F, H, W] those that may have larger halos than `largest` and than each other: a convolution's halo
/// is as large as rows are wide, or frames are large.
std::vector<std::array<int64_t, 4>> wider_than(const std::array<int64_t, 4>& largest,
                                               const std::vector<std::array<int64_t, 4>>& latents);

/// Bytes that the driver and NCCL take of a rank's GPU in a training of the job, where plan.profile has a target; else 0, not
/// known.
int64_t beside_plan(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh);

/// Bytes of the embeddings of the sampled prompts and the negative prompt.
int64_t prompt_bytes(const job::Job& job, int prompts);

}  // namespace tessera::planning
