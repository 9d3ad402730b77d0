#pragma once
// Converts a recipe into a request to the planner.
//
//   const PlanRequest request = plan_request(recipe, job, shapes, mesh, prompts);
//   make_plan(request);
#include "tessera/job/job.h"
#include "tessera/planning/planning.h"

namespace tessera::planning {

/// The planner's input for the job, in the shapes of `recipe`. `prompts`: number of sampled prompts.
PlanRequest plan_request(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                         int prompts);

/// Bytes of the embeddings of the sampled prompts and the negative prompt.
int64_t prompt_bytes(const job::Job& job, int prompts);

}  // namespace tessera::planning
