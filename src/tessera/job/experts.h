#pragma once
// The denoisers of a run: one, two experts that each own a range of timesteps, or several among which a learned gate
// chooses (docs/experts.md). One is the usual case and goes the same way: it has no name, every timestep and every
// step.
//
//   const Experts experts = find_experts(recipe);             // by model.path and [experts]
//   experts.list[e].name;                                     // "high_noise"
//   experts.serving(875);                                     // who denoises at that timestep
//   each_expert(store, experts, [&](size_t e, const std::string& prefix) { restore(store, saved, prefix); });
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/diffusion/experts.h"
#include "tessera/diffusion/flow.h"
#include "tessera/diffusion/loss.h"
#include "tessera/engine/store/store.h"
#include "tessera/net/model.h"
#include "tessera/recipe/stages.h"

namespace tessera::job {

struct Expert {
  std::string name;    ///< "high_noise" or "low_noise"; of a gate "expert_0" ...; empty for a model that is one
  std::string path;    ///< of its weights; empty: the initial ones of the seed
  std::string folder;  ///< of its weights in an exported model: high_noise_model, expert_0
  diffusion::Window window = {};
  int64_t piece = 0;  ///< of a shift by area (diffusion::area_shift), that of the run's autoencoder
};

struct Experts {
  std::vector<Expert> list;  ///< high noise first; those that this run trains
  double boundary = 0;       ///< sigma from which on a timestep is the high-noise expert's; set by place_boundary
  std::string teacher = {};  ///< weights of a frozen denoiser, behind those of the list; empty: none
  bool own_teacher = false;  ///< it has other sizes, and is none of the store's (Job::teacher)
  bool gated = false;        ///< each sample's is chosen by a gate (job/gate_router.h); they own no timesteps
  int64_t critic_steps = 0;  ///< of the critic after each of its student's, which the list are; 0: they are others
  bool regresses = false;    ///< the student learns the ends of the teacher's paths
  /// Student, critic and teacher are adapters of one model, or none, which is kept once; a teacher of other sizes beside it.
  bool shared_base = false;

  bool several() const { return list.size() > 1; }
  size_t size() const { return list.size(); }
  bool critic() const { return critic_steps > 0; }
  bool of_noise() const { return critic() || regresses; }  ///< the student's clips begin there, not in the data
  /// That the trained model consists of; a critic stays in checkpoints.
  size_t models() const { return critic() ? 1 : list.size(); }
  /// Networks of a plan that are never trained.
  int teachers() const { return teacher.empty() || shared_base || own_teacher ? 0 : 1; }
  /// That have steps of their own: all, but for a gate, whose experts share every step.
  size_t places() const { return gated ? 1 : list.size(); }
  /// The expert that denoises at timestep `t`, 0 to 1000.
  size_t serving(double t) const { return models() > 1 && t < 1000 * boundary ? 1 : 0; }
};

/// By experts.router, experts.train and what model.path holds; windows are still open. Throws UserError (usage) where
/// the recipe wants experts that a single model has not, or keys of both routers, (input) where a folder is missing.
Experts find_experts(const recipe::Recipe& recipe);

/// Of a student with a critic, whose teacher has other sizes: the critic begins as the student, where none is named.
void have_own_teacher(Experts& experts, bool named_critic, bool adapters);

/// Cuts their windows at experts.boundary: a sigma after the shift, a fraction of DiffSynth's grid, or, with auto, that
/// that the base says (checkpoint::find_facts), else that of the model's release.
void place_boundary(Experts& experts, const recipe::Recipe& recipe, const net::Denoiser& model);

/// experts.boundary as a sigma. "diffsynth(0.417)" is DiffSynth's index fraction, whose grid has a shift of 5 whatever
/// the run's is. Throws UserError (usage).
double parse_boundary(const std::string& text);

/// `recipe` as one of them sees it: model.path and lora.init are its own.
recipe::Recipe for_expert(recipe::Recipe recipe, const Experts& experts, size_t expert);

/// How the timesteps of one of them are drawn. Throws UserError (usage) when diffusion.min_t and max_t leave it none.
diffusion::Options timestep_options(const recipe::Recipe& recipe, const Expert& expert);
/// What diffusion.loss and diffusion.huber_* say.
diffusion::LossRule loss_rule(const recipe::Recipe& recipe);
diffusion::ChunkDraws chunk_draws(const recipe::Recipe::Diffusion& diffusion);
/// What masks of a data set count; `on`: some sample of the run has one.
diffusion::MaskRule mask_rule(bool on, const recipe::Recipe::Diffusion& rules, const recipe::Recipe::Data& data);

/// The expert that trains at each step of the run: runs of experts.turn steps, drawn by experts.shares or by the mass
/// that each window has under the timestep distribution of the part of the run. With a gate it is always 0.
diffusion::ExpertOrder plan_expert_order(const Experts& experts, const std::vector<recipe::RunPart>& parts);

/// Throws UserError (usage) when the checkpoint is of a run with other experts.
void check_experts(const Experts& experts, const checkpoint::Manifest& saved);

/// Calls `act` for each while it is the store's active expert, moving no bytes. `prefix`: of its tensors in
/// checkpoints, "high_noise_model."; empty where there is one model.
void each_expert(engine::Store& store, const Experts& experts,
                 const std::function<void(size_t expert, const std::string& prefix)>& act);

}  // namespace tessera::job
