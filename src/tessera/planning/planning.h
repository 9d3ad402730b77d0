#pragma once
// From a model and the shapes of its data to the plan and the schedules of every rank: what `tessera plan` prints is
// what `tessera train` runs, because both call this.
//
//   Planned planned = make_plan_as_is(request);                // make_plan.h adds advice
//   planned.schedules(rank).train;
#include <array>

#include "tessera/net/model.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/search/layouts.h"
#include "tessera/planning/encoder_bytes.h"

namespace tessera::planning {

/// Whose a step is, where several experts learn.
struct Routing {
  bool gated = false;  ///< each sample's expert is chosen by a gate; else they have turns
  bool soft = false;   ///< of a gate: all answer every sample
  double changes = 0;  ///< of turns: the share of the steps that another expert than the one before has
};

struct PlanRequest {
  const net::Denoiser* model = nullptr;
  std::string model_name;
  std::array<int64_t, 4> latent{};  ///< [C, F, H, W] of one sample
  Mesh mesh;
  plan::PlannerInput planner;
  bool any_idle = false;              ///< idle experts leave the device where the rest fits no other way
  bool any_micro_batch = false;       ///< fewer samples at once than planner.micro_batch are tried as well
  plan::Machine machine;              ///< its work is counted by make_plan
  std::optional<plan::Plan> by_hand;  ///< plan.file: taken as it is
  std::string notes;                  ///< on that file, to be told with the plan (plan_notes.h)
  plan::RunShape run;
  Routing routing;
  int guidance_branches = 2;  ///< forward passes of one sampler step
  int64_t resident = 0;       ///< bytes of tensors that live through the run beside the engine's
  int64_t between_steps = 0;  ///< and of those that are there only while no step runs: a sample is decoded
  EncoderBytes encoders;      ///< what `prepare` and samples take, to be told
  int checkpoints_kept = 0;   ///< 0: all of the run
  int64_t cache_entry = 0;    ///< bytes of a cached sample with the longest text; 0: nothing is cached
  int64_t host_sample = 0;    ///< host bytes of a training sample, noised and with its target (train/loader.h)
};

struct Planned {
  plan::ModelSpec spec;
  plan::Machine machine;
  plan::Choice choice;
  plan::Prediction prediction;  ///< of choice.plan
  int64_t budget = 0;           ///< device bytes a rank; 0: unlimited
  int64_t host_budget = 0;      ///< host bytes a rank; 0: nothing may leave by the planner's choice
  int checkpoints_kept = 0;     ///< 0: all of the run
  int64_t cache_entry = 0;      ///< see PlanRequest
  int64_t host_sample = 0;      ///< likewise
  plan::RunShape run;
  Routing routing;
  int guidance_branches = 2;
  EncoderBytes encoders;

  const plan::Plan& plan() const { return choice.plan; }
  plan::RunSchedules schedules(int rank) const;
  plan::MemoryCurve memory(int rank) const;  ///< of the training step, with the run's arena
  std::vector<std::string> unit_names() const;
  int64_t loader_bytes()
      const;  ///< of the host, a rank: the samples of a step, and of the next that are made meanwhile
  void warn(const std::string& message);  ///< adds to choice.warning; nothing where it is empty
  int highest_rank() const;               ///< the first rank with the highest peak
};

/// The model and what it computes, as ranks of the request's mesh see them with micro-batches of `samples`.
plan::Measured measure_model(const PlanRequest& request, int64_t samples);

/// Measures the model, chooses (or takes) the plan and simulates it.
Planned make_plan_as_is(const PlanRequest& request);

/// Simulates planned.choice.plan: its time and memory, whether it fits, and what to do where it does not.
void judge(Planned& planned, const PlanRequest& request);

}  // namespace tessera::planning
