#pragma once
// The discriminator of a run: heads on a frozen teacher's blocks, which every rank has whole, with an optimiser of their own.
// They normalise over groups of samples of a step's batch, whatever ranks these are on: a group's features go to one rank,
// what it tells them comes back, and the heads' gradients are summed over the ranks. So a layout changes nothing.
//
//   Heads heads(job::optimiser_of(recipe, states), rules, {.count = 4, .width = 2240}, device, peers);
//   const Heads::Told told = heads.tell(features, spread, tokens);              // the student learns
//   const Heads::Lesson lesson = heads.learn(fakes, of_fakes, reals, of_reals, tokens, rate);
#include <functional>
#include <map>
#include <memory>

#include "tessera/checkpoint/training.h"
#include "tessera/comm/comm.h"
#include "tessera/diffusion/distillation.h"
#include "tessera/net/unit_update.h"
#include "tessera/recipe/lr_schedule.h"

namespace tessera::train {

/// Whose step it is, of networks that learn against each other: each has one in turn, and has the next one, too, where its
/// update was skipped. The place is saved.
class Turns {
 public:
  struct Network {
    std::string name;              ///< in metrics and checkpoints: "student"
    recipe::LrSchedule rate = {};  ///< over its own turns
  };
  explicit Turns(std::vector<Network> networks) : networks_(std::move(networks)), taken_(networks_.size()) {}

  size_t now() const { return now_; }
  const std::string& name(size_t network) const { return networks_.at(network).name; }
  /// In the turn that it has or has next.
  double rate(size_t network) const { return recipe::learning_rate(networks_.at(network).rate, taken(network)); }
  /// Its turns, each an update.
  int64_t taken(size_t network) const { return taken_.at(network); }
  void end_step(bool updated);

  void write(checkpoint::Manifest& manifest) const;
  /// Throws UserError (input) for a checkpoint without turns, or of other networks.
  void resume(const checkpoint::Manifest& manifest);

 private:
  std::vector<Network> networks_;
  size_t now_ = 0;
  std::vector<int64_t> taken_;
};

class Heads {
 public:
  /// Features of a rank's samples by their index in a batch: [tokens, heads * width] fp32 in host memory.
  using Rows = std::map<int64_t, at::Tensor>;
  /// A batch of judged samples: which of them each dp rank has.
  struct Spread {
    int64_t samples = 0;
    std::vector<std::vector<int64_t>> of_rank;
  };
  struct Told {
    double loss = 0;  ///< of all samples
    Rows at_rows;     ///< its gradients
  };
  struct Lesson {
    diffusion::AdversarialLoss loss;  ///< of all samples, without gradients and logits
    double norm = 0;                  ///< of the gradients, before clipping
    bool finite = true;               ///< else nothing was updated
  };

  struct Rules {
    diffusion::AdversarialRule loss;
    double clip_norm = 0;  ///< 0: none
    uint64_t seed = 0;     ///< of the first weights
  };
  struct Shape {
    size_t count = 0;
    int64_t width = 0;  ///< numbers of a token
  };
  /// `peers`: of this rank on the axes of samples; null: it has all of them.
  Heads(std::unique_ptr<const net::UnitUpdate> optimiser, const Rules& rules, Shape shape, at::Device device,
        comm::Group* peers);

  Told tell(const Rows& own, const Spread& spread, int64_t tokens);
  Lesson learn(const Rows& fakes, const Spread& of_fakes, const Rows& reals, const Spread& of_reals, int64_t tokens,
               double rate);

  /// Of a training checkpoint: borrowed until it is written, by one rank.
  std::vector<checkpoint::Piece> pieces() const;
  /// Throws UserError (input) when the checkpoint has no such heads.
  void resume(checkpoint::TrainingCheckpoint& saved, int64_t updates);

 private:
  struct Trained {
    plan::ParamSpec spec;
    std::vector<plan::StateSpec> specs;
    std::vector<at::Tensor> states;  // bytes
    int64_t at = 0;                  // in gradients_
  };
  using Groups = std::map<int64_t, at::Tensor>;  // by number: [samples, tokens, heads * width]
  int64_t owner(int64_t group, const Spread& spread) const;
  size_t here() const { return static_cast<size_t>(peers_ ? peers_->rank() : 0); }
  using Samples = std::vector<std::vector<int64_t>>;  // by rank that they go to, or come from
  /// Samples of a rank whose groups another one has.
  std::vector<int64_t> between(size_t from, size_t to, const Spread& spread) const;
  /// Rows that came of each rank, for those that left to it.
  std::vector<at::Tensor> exchanged(const Samples& leave, const Samples& come, int64_t tokens,
                                    const std::function<at::Tensor(int64_t)>& row) const;
  Groups gathered(const Rows& own, const Spread& spread, int64_t tokens) const;
  Rows scattered(const Groups& groups, const Spread& spread, int64_t tokens) const;
  std::vector<at::Tensor> features(const at::Tensor& group) const;
  diffusion::Discriminator on_device() const;
  void sum(const at::Tensor& values) const;
  void update(const net::StepControl& control);

  const Rules rules_;
  const size_t count_;
  const int64_t width_;
  const at::Device device_;
  comm::Group* const peers_;
  std::unique_ptr<const net::UnitUpdate> optimiser_;
  std::map<std::string, at::Tensor> values_;  // by NVlabs' names, in host memory
  std::map<std::string, Trained> trained_;
  at::Tensor gradients_;
  int64_t updates_ = 0;
};

}  // namespace tessera::train
