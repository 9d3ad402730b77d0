#pragma once
// What a plan is asked for and what is planned: a run's facts, the request, and the choice with its prediction and what was
// measured for both.
//
//   planned.plan(), planned.memory(rank).peak, planned.prediction.step.total, planned.choice.why
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "tessera/base/target.h"
#include "tessera/diffusion/distillation.h"
#include "tessera/net/model.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/plan/search/layouts.h"
#include "tessera/plan/simulate/libraries.h"
#include "tessera/plan/simulate/predict.h"
#include "tessera/planning/encoders.h"

namespace tessera::planning {

/// How experts share the steps, if there are several.
struct Routing {
  bool gated = false;                   ///< a gate chooses each sample's expert; else an expert schedule does
  bool soft = false;                    ///< with a gate: all experts predict every sample
  double changes = 0;                   ///< with an expert schedule: share of the steps that begin with an expert swap
  std::vector<std::string> names = {};  ///< likewise: of the experts
  std::vector<double> shares = {};      ///< likewise: of the steps, as numbers of steps
  bool deals = false;                   ///< with a gate: samples go to the ranks by their experts
  /// With a gate: how often samples choose each expert, and where that is from.
  std::vector<double> frequencies = {};
  std::string frequencies_from = {};
  bool together = false;  ///< with a gate: passes of two experts may run side by side (Plan::together)
  bool by_use = false;    ///< with a gate: an expert's passes run by a plan that suits how often it is chosen
};

/// What planning is about to do, for those who say where the time goes.
enum class PlanPhase { measuring, searching };
using OnPlanPhase = std::function<void(PlanPhase)>;

/// What a rank of a mesh has (rank_share.h).
struct RankShare {
  int64_t budget = 0;         ///< device bytes
  int64_t host_budget = 0;    ///< host bytes, with those of its encoders
  int local_world = 1;        ///< ranks of its machine
  int64_t micro_batch = 1;    ///< samples of its micro-batches at most
  int64_t resident = 0;       ///< device bytes of encoders that stay loaded, and of predictions that a soft gate mixes
  int64_t host_encoders = 0;  ///< RunFacts
  int64_t kept_weights = 0;   ///< RunFacts
  EncoderSeconds encoding;
};

/// What measuring models told, by micro-batch, mesh of the ranks that share its tokens, and dtype: meshes that differ in data
/// parallelism alone have the same.
class Measurements;
std::shared_ptr<Measurements> no_measurements();

/// What a run writes for other programs (disk_need.h).
struct Exported {
  bool adapters = false;   ///< alone, else whole models
  int files = 1;           ///< of the same numbers: adapters under several names
  bool each_save = false;  ///< to RUN/exports, beside RUN/model at the end
  int64_t kept = 0;        ///< of those of saves; 0: all
};

/// What a request says of the run around its steps, and a plan's memory, disk and reports read.
struct RunFacts {
  plan::RunShape run;
  Routing routing;
  int guidance_branches = 2;    ///< forward passes of one sampler step
  int device_threads = 1;       ///< that compute on the device: the step's, and those of encoders beside it
  bool deterministic = false;   ///< run.deterministic
  EncoderBytes encoders;        ///< memory of `prepare` and of sampling
  EncoderSeconds encoding;      ///< what machine.beside was made of, for reports
  int checkpoints_kept = 0;     ///< 0: all checkpoints of the run
  bool saves_by_clock = false;  ///< beside those of run.checkpoint_every; any step may be saved
  Exported exported = {};       ///< what the run writes for other programs
  int64_t cache_entry = 0;      ///< bytes of a cached sample with the longest text; 0: no cache
  int64_t host_sample = 0;      ///< host bytes of a training sample with noise and target (train/loader.h)
  int64_t host_encoders = 0;    ///< host bytes of a rank's encoders, with what they work in: data.encoders = "host"
  int64_t kept_weights = 0;     ///< host bytes of a rank for its weights as they were, while sample.lora is in them
};

/// What is asked of the planner; what it answers is a Planned.
struct PlanRequest : RunFacts {
  const net::Denoiser* model = nullptr;
  std::string model_name;
  std::array<int64_t, 4> latent{};  ///< [C, F, H, W] of one sample
  /// The largest sample of a latent (job::blank_sample); empty: model->blank.
  std::function<net::Sample(const net::Denoiser&, const std::array<int64_t, 4>&)> blank = {};
  const net::Denoiser* teacher = nullptr;  ///< of other sizes than the model's (plan::teacher_plan); null: none
  /// Of the run's other shapes those with larger halos, though no more tokens: their memory is planned for as well.
  std::vector<std::array<int64_t, 4>> wider;
  /// Shapes whose global batches have numbers of samples of their own.
  struct OtherBatch {
    std::array<int64_t, 4> latent{};
    int64_t samples = 1;
  };
  std::vector<OtherBatch> others = {};
  int64_t most_rounds = 0;  ///< micro-batches of a rank, so that each has a sample of every shape; 0: any number
  Mesh mesh;
  plan::PlannerInput planner;
  bool any_idle = false;              ///< inactive experts may be offloaded if nothing fits otherwise
  bool base_in_int8 = false;          ///< a frozen base in bf16 is planned in 8 bits instead
  bool any_micro_batch = false;       ///< micro-batches smaller than planner.micro_batch are tried too
  bool masked = false;                ///< samples have masks of what counts in their loss
  ops::ErrorForm loss = {};           ///< of their predictions
  plan::Machine machine;              ///< its work is counted by make_plan
  std::optional<plan::Plan> by_hand;  ///< plan.file: used unchanged
  std::string notes;                  ///< warnings about that file and about the autoencoder, reported with the plan
  struct Heads {
    std::set<int64_t> blocks = {};  ///< of the teacher
    diffusion::AdversarialRule rule = {};
  } heads = {};                ///< that judge a student: run.judges
  std::string no_graphs = {};  ///< why the run's steps cannot be graphs, where the plan does not know it
  int64_t resident = 0;        ///< bytes of tensors resident through the run beside the engine's
  int64_t of_mesh = 0;         ///< further ones, which other meshes have otherwise: RankShare::resident
  int64_t between_steps = 0;   ///< further bytes resident only between steps, while a sample is decoded
  /// Bytes of a rank at the peak of `prepare` with this plan.budget; empty: encoders are part of the step's memory.
  std::function<int64_t(int64_t budget)> prepare_peak = {};
  std::function<RankShare(const Mesh&)> share_on = {};             ///< of other meshes; empty: as here
  std::shared_ptr<Measurements> measurements = no_measurements();  ///< that copies of a request share
  OnPlanPhase on_phase = {};
};

/// A step with more memory on one tier: of a rank's device, or of a node's host.
struct MemoryPrice {
  plan::Tier memory = plan::Tier::device;
  int64_t bytes = 0;  ///< more
  double seconds = 0;
  bool binds = false;  ///< the step is faster with it
};

/// A choice of the planner, what it predicts of it, and what was measured for both.
struct Planned : RunFacts {
  plan::ModelSpec spec;
  /// Of heads that judge a student: its teacher up to their blocks, frozen, with gradients of the inputs; null: there are none.
  std::shared_ptr<const plan::ModelSpec> features = nullptr;
  diffusion::HeadsBytes heads = {};                          ///< of those heads
  std::shared_ptr<const plan::ModelSpec> tangent = nullptr;  ///< in forward mode; null: the run has no such pass
  /// A teacher of other sizes, frozen, forward alone, and its work; null: there is none.
  std::shared_ptr<const plan::Measured> teacher = nullptr;
  plan::Machine machine;
  plan::Choice choice;
  plan::Prediction prediction;                 ///< of choice.plan; where experts' steps differ, of the first expert's
  std::map<int, plan::StepSeconds> of_expert;  ///< of experts whose steps differ from the first expert's
  int64_t budget = 0;                          ///< device bytes a rank; 0: unlimited
  int64_t host_budget = 0;                     ///< host bytes a rank; 0: the planner offloads nothing
  plan::GraphsChoice graphs = {};
  std::vector<MemoryPrice> prices = {};  ///< of more memory, where they were asked for (more_memory.h)
  /// The plan, and others by which an expert's passes may run (plan_by_use); empty: all run by the plan.
  std::vector<plan::PassPlan> by_use = {};
  std::string apart = {};  ///< why a gate's experts run one after the other; empty: two may run side by side

  const plan::Plan& plan() const { return choice.plan; }
  plan::RunSchedules schedules(int rank) const;
  /// Of the training step, or the expert's pass, that needs most, with the run's arena.
  plan::MemoryCurve memory(int rank) const;
  void predict();            ///< fills prediction and of_expert
  void predict_matching();   ///< the same of what predict() found, for a run that matches()
  double mean_step() const;  ///< seconds of a step without expert swaps, over all experts
  std::vector<std::string> unit_names() const;
  plan::Plan teacher_plan() const { return plan::teacher_plan(teacher->model.units.size(), plan()); }
  /// The plan in `by_use` of each expert, where samples choose them so often.
  std::vector<size_t> plans_of_experts(const std::vector<double>& frequencies) const;
  /// Host bytes of a rank for the samples of a step and of the next one, which is loaded meanwhile; where samples are dealt
  /// to ranks also for those that came and for the messages that they go in.
  int64_t loader_bytes() const;
  /// Samples of each dp rank in a step.
  std::vector<int64_t> own_samples() const;
  /// Workspaces of libraries, within the peak as activations; and what lies beside it on the GPU. None without a target.
  std::vector<plan::LibraryBytes> workspaces() const;
  std::vector<plan::LibraryBytes> beside() const;
  /// plan::driver_bytes() of the run.
  int64_t driver_bytes(int64_t budget) const;
  void warn(const std::string& message);  ///< appends to choice.warning; ignores an empty message
  int highest_rank() const;               ///< the first rank with the highest peak
};

/// Models that were measured already, by the samples of a micro-batch: of one model, mesh and computing dtype.
using MeasuredModels = std::map<int64_t, plan::Measured>;

}  // namespace tessera::planning
