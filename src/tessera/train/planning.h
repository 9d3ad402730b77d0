#pragma once
// From a model and the shapes of its data to the plan and the schedules of every rank: what `tessera plan` prints is
// what `tessera train` runs, because both call this.
//
//   Planned planned = make_plan(request);
//   planned.schedules(rank).train;
#include <array>

#include "tessera/net/model.h"
#include "tessera/plan/planner.h"

namespace tessera::train {

struct PlanRequest {
  const net::Denoiser* model = nullptr;
  std::string model_name;
  std::array<int64_t, 4> latent{};  ///< [C, F, H, W] of one sample
  Mesh mesh;
  plan::PlannerInput planner;
  plan::Rates rates;
  std::optional<plan::Plan> by_hand;  ///< plan.file: taken as it is
  plan::RunShape run;
  int guidance_branches = 2;  ///< forward passes of one sampler step
  int64_t resident = 0;       ///< bytes of tensors that live through the run beside the engine's
};

struct Planned {
  plan::ModelSpec spec;
  plan::Choice choice;
  plan::RunShape run;
  int guidance_branches = 2;

  const plan::Plan& plan() const { return choice.plan; }
  plan::RunSchedules schedules(int rank) const;
  plan::MemoryCurve memory(int rank) const;  ///< of the training step, with the run's arena
  std::vector<std::string> unit_names() const;
};

Planned make_plan(const PlanRequest& request);

/// What `plan --json` prints (contract, section plan).
std::string plan_json(const Planned& planned);
/// What `plan` prints for people.
std::string plan_text(const Planned& planned);
/// Writes every instruction of every rank and step of the run. Throws UserError (disk).
void write_schedule(const Planned& planned, const std::string& file);

}  // namespace tessera::train
