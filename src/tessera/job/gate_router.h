#pragma once
// The learned gate of a run: what chooses among experts that began as one model (docs/experts.md). Every rank has all
// of it, a few kilobytes, and moves it by the same sums.
//
//   GateRouter router(recipe, experts.size(), model.context_dim());
//   router.gate().ask(inputs, &key);                                   // train/gated_step.h
//   router.update(gradient, lr, recipe.train);
//   router.predict(t, context, [&](size_t e) { return run(e); });      // samples
#include <filesystem>
#include <functional>

#include "tessera/checkpoint/training.h"
#include "tessera/diffusion/experts.h"
#include "tessera/recipe/recipe.h"
#include "tessera/torch_headers.h"

namespace tessera::job {

class GateRouter {
 public:
  /// `text`: width of text embeddings. The recipe outlives it.
  GateRouter(const recipe::Recipe& recipe, size_t experts, int64_t text);

  const diffusion::Gate& gate() const { return gate_; }
  bool hard() const { return recipe_.experts.hard; }

  /// One AdamW step from the gradient of the step's loss, the same on all ranks: the run's betas and epsilon, its
  /// weight decay on the layer's weight alone, clipped by its own norm, which it gives.
  double update(std::vector<float> gradient, double lr, const recipe::Recipe::Train& settings);
  int64_t updates() const { return updates_; }

  /// What is predicted at timestep `t` for a prompt [n, D]: by whom the gate names, or, soft, the weighted sum of all.
  /// `run(e)`: tensors of expert e, one a branch of guidance.
  std::vector<at::Tensor> predict(double t, const at::Tensor& context,
                                  const std::function<std::vector<at::Tensor>(size_t expert)>& run) const;

  /// Of a training checkpoint: borrowed until it is written, by one rank; how many updates it had.
  std::vector<checkpoint::Piece> pieces() const;
  void write(checkpoint::Manifest& manifest) const;
  /// The reverse. Throws UserError (input) when the checkpoint has no gate of this size.
  void resume(checkpoint::TrainingCheckpoint& saved);

  /// gate.safetensors of an exported model, beside expert_0, expert_1 ...
  static bool is_in(const std::filesystem::path& folder);
  void save_model(const std::filesystem::path& folder) const;
  /// Throws UserError (input) where the file is of another number of experts or another text encoder.
  void load_model(const std::filesystem::path& folder);

 private:
  const recipe::Recipe& recipe_;
  diffusion::Gate gate_;
  std::vector<float> exp_avg_, exp_avg_sq_;
  int64_t updates_ = 0;
};

}  // namespace tessera::job
