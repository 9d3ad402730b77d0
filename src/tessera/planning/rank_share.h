#pragma once
// One rank's share of the machine in a plan: budgets, samples, and the memory and seconds of its encoders. It depends on
// the mesh (NCCL's buffers, ranks that share a node's host memory), so requests for other meshes compute it anew.
//
//   const std::optional<PlanRequest> there = on_mesh(request, Mesh::parse("cp=8"));
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/job/job.h"
#include "tessera/planning/measure.h"

namespace tessera::planning {

/// Device bytes of a rank where plan.budget is not set: a share of the device, or of this machine's memory on CPU ranks.
int64_t rank_budget(const plan::Profile& profile, const Mesh& mesh, const UnitGroups& sent_by);

/// `encoders`: on `mesh`. `sent_by`: of the job; asked where the budget of a GPU is not given.
RankShare rank_share(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                     const plan::Profile& profile, const EncoderBytes& encoders, const UnitGroups& sent_by);

/// Gives the request's ranks this share; false where host memory has no room for their encoders.
bool set_share(PlanRequest& request, const RankShare& share);

/// The request on another mesh; empty where set_share() is false.
std::optional<PlanRequest> on_mesh(PlanRequest request, const Mesh& mesh);

// The time that experts add to the predicted step: expert swaps, or the range of a gate's choices.
//
//   for (const SecondsRow& row : expert_rows(planned)) table.row(row.label, row.value, row.note);

struct SecondsRow {
  std::string label, value, note;
};

/// Rows of `plan`'s table of a step; none with one denoiser.
std::vector<SecondsRow> expert_rows(const Planned& planned);

/// Seconds of a step on average, expert swaps included.
double mean_step_seconds(const Planned& planned);

/// "experts" of `plan --json`; null with one denoiser. `mean_step_seconds` is the mean time of a step over the run,
/// expert swaps included.
nlohmann::ordered_json expert_json(const Planned& planned);

}  // namespace tessera::planning
