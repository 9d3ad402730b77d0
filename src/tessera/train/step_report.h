#pragma once
// The numbers of a step: what ranks exchange at its `norm` (loss, memory, times), packed as doubles; and the FLOPs that the
// model takes of a rank, for model FLOPs utilisation (MFU): the FLOP/s of a step in relation to the peak of the devices.
//
//   std::vector<double> mine = report.pack();
//   RankMetrics line = rank_metrics(1, StepReport::unpack(theirs), mesh, temporaries);
//   ModelFlops flops(model);
//   const double done = samples * flops.of_sample(latent, plan, rank);            // of this rank in the step
//   if (const auto peak = peak_flops(machine, on_gpu, threads)) mfu = done / (seconds * *peak);           // 0.41
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/diffusion/flow_matching.h"
#include "tessera/engine/store/meter.h"
#include "tessera/net/model.h"
#include "tessera/net/unit_update.h"
#include "tessera/optim/grad_scaler.h"
#include "tessera/plan/compile/run_walk.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/simulate/cost.h"
#include "tessera/recipe/recipe.h"
#include "tessera/report/metrics.h"

namespace tessera::train {

/// What the bytes of dealt samples count for beside the axes of the mesh.
inline constexpr const char* kDeal = "deal";

struct StepReport {
  double loss = 0;        ///< this rank's share of the mean loss
  double bad_sample = 0;  ///< 1 + dataset index of a sample with a NaN or infinite loss, 0: none
  double stop = 0;        ///< the signal that asked for the end or for a checkpoint; 0: none
  double peak = 0, persistent = 0, predicted = 0, reserved = 0;
  double host = 0;  ///< bytes on the host tier
  /// Of activations compressed in the step: the mean of their relative errors and the largest; -1: none was.
  double compression_error = -1, most_compression_error = 0;
  double samples = 0;  ///< host bytes of the step's samples; the next ones take as much
  double work = 0;     ///< seconds a sample took in the step before; 0: it had none
  /// Seconds in which computing waited in the step before: for collectives, copies, other stages (engine/step_times.h);
  /// and before this step for its samples.
  double exposed_comm = 0, exposed_copy = 0, exposed_stages = 0, exposed_data = 0, exposed_dispatch = 0;
  net::Totals totals{};                          ///< of updates ([Note: totals] of net/unit_update.h)
  std::array<double, engine::kParts> at_peak{};  ///< bytes by engine::Part when the peak was reached
  std::array<double, kAxes> sent{};              ///< bytes of the step before, by mesh axis; a group over several
                                                 ///< axes counts on the outermost
  double dealt = 0;                              ///< bytes of the samples that this rank sent to others, of this step
  std::array<double, plan::kLaneCount> busy{};   ///< seconds of each lane in the step before
  /// Of the GPU, by its driver since the step before (device/driver_watch.h); no bytes: it says nothing.
  double gpu_utilisation = 0, gpu_watts = 0, gpu_bytes = 0;
  double due = 0;                         ///< 1: checkpoint.every_minutes are over
  diffusion::LossByTimestep by_timestep;  ///< this rank's
  double span = 0;   ///< seconds in which they were, with what followed that step: samples, checkpoints
  double flops = 0;  ///< that the model takes of this rank in this step (utilisation.h)

  /// Bytes as the meter has them now.
  void read_meter();
  /// Bytes by axis and seconds by lane, as comm::Comm and engine::StepTimes count them.
  void take(const std::map<std::string, int64_t>& sent, const std::map<std::string, double>& lanes);

  std::vector<double> pack() const;
  static StepReport unpack(const std::vector<double>& values);
};

/// A rank's entry of a step's metrics. `temporaries`: the predicted bytes of them at the peak; the meter does not tell
/// them from activations.
report::RankMetrics rank_metrics(int rank, const StepReport& report, const Mesh& mesh, int64_t temporaries);

/// A step that every rank has finished.
struct StepEnd {
  plan::Visit visit;
  report::StepMetrics metrics;
  const std::vector<StepReport>& ranks;  ///< what each rank reported
  std::string skipped = {};              ///< why it made no update; empty: it made one
};

/// What happens around each training step, in the order in which the loop lists its observers (trainer.cpp).
struct Observer {
  std::function<void(const plan::Visit&)> before = [](const plan::Visit&) {};
  std::function<void(StepEnd&)> after = [](StepEnd&) {};
};

/// Counts what a forward and a backward of the model take: matrix products and attention. What recompute repeats, and
/// gradients that nobody needs (of frozen weights, before the first trained unit), do not count.
class ModelFlops {
 public:
  /// The model must outlive this object.
  explicit ModelFlops(const net::Denoiser& model) : model_(model) {}

  /// What `rank` does of one sample with a latent of [C, F, h, w]: the units of its pipeline stages, an even share of
  /// the tokens. Each shape is counted once, on meta tensors.
  double of_sample(const std::array<int64_t, 4>& latent, const plan::Plan& plan, int rank);

 private:
  const net::Denoiser& model_;
  std::map<std::array<int64_t, 4>, std::vector<double>> by_unit_;
};

/// FLOP/s that a rank can do: the profile's rate of products in the dtype that the plan computes in. The stand-in
/// profile "cpu" has the rate of one thread: a rank has `threads` of them. Nothing where no rate is known: of a GPU with
/// that profile, or of a profile without the dtype.
std::optional<double> peak_flops(const plan::Machine& machine, bool on_gpu, int threads);

}  // namespace tessera::train

// Whether a step is applied, skipped, or stops the run: every rank decides alike from the same losses and norm. And the
// scale that brings gradients into the range of fp16, where something is fp16: a step whose gradients overflow is skipped.
//
//   const Decision decision = decide(step.norm(), step.ranks(), rules, loss_scale);
//   engine.finish(std::move(step), decision.control);

namespace tessera::checkpoint {
struct Manifest;
}

namespace tessera::train {

class LossScale {
 public:
  LossScale() = default;  ///< none
  /// None where nothing of the plan is fp16.
  LossScale(const plan::Plan& plan, const recipe::Recipe::Train& train);

  std::optional<double> scale() const;  ///< of the step to come
  /// Ends a step with a finite loss. Why its gradients are not to be used, in words; empty when they are. Throws
  /// UserError (not_finite) when they overflow at every scale; `kept`: what there is to go back to then.
  std::string end_step(int64_t step, bool finite, const std::function<std::string()>& kept = {});

  void save(checkpoint::Manifest& manifest) const;
  void restore(const checkpoint::Manifest& manifest);  ///< what was saved without a scale begins with the recipe's

 private:
  std::optional<optim::GradScaler> scaler_;
};

/// What the recipe says of a step that the decision needs.
struct DecisionRules {
  int64_t step = 0;
  double rate = 0;                             ///< learning rate
  double clip_norm = 0;                        ///< 0: no clipping
  bool skip_not_finite = false;                ///< run.on_nan = skip; else such a step ends the run
  std::function<int64_t()> count_update;       ///< the number of the update, called when there is one
  std::function<std::string(int64_t)> source;  ///< the file of a data-set index, for messages
  std::function<std::string()> kept = {};      ///< what there is to go back to, for messages that end the run
  bool updated = false;                        ///< updates were made in the backward: nothing is left to control
};

struct Decision {
  std::vector<StepReport> ranks;
  diffusion::LossByTimestep by_timestep;
  double loss = 0, norm = 0;  ///< mean over the global batch; norm of all gradients, unscaled
  double rate = 0;
  std::optional<double> loss_scale;         ///< that the step had
  std::optional<double> d;                  ///< its step size, of optimisers that find it themselves
  std::optional<net::StepControl> control;  ///< of its updates; nothing: there are none
  std::string skipped;                      ///< why no update is made; empty: one is
  bool overflow = false;                    ///< that is the loss scale, which has been lowered: no fault
  int stop = 0;                             ///< the signal that asks some rank to stop; 0: none
  bool save = false;                        ///< a signal asks some rank for a checkpoint
  bool due = false;                         ///< checkpoint.every_minutes do
};

/// Throws UserError (not_finite) for a loss or norm that is not finite, naming the sample, unless such steps are
/// skipped or a smaller loss scale may mend it.
Decision decide(double norm, const std::vector<std::vector<double>>& ranks, const DecisionRules& rules,
                LossScale& loss_scale);

}  // namespace tessera::train
