#pragma once
// Which network of a run each step trains, where several learn against each other: a student and the heads that judge it, a
// generator and its critic. What a network learns by, and the order, are data; the place in it is saved.
//
//   Phases phases({student, heads}, in_turn(2));                // G, D, G, D, ...
//   Phases phases({generator, critic}, every(5));               // both, then four times the critic alone
//   for (const size_t network : phases.now()) {
//     ... train it at phases.rate(network), clip by phases.network(network).clip ...
//     phases.took(network, updated);
//   }
//   phases.end_step();
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/plan/states.h"
#include "tessera/recipe/lr_schedule.h"

namespace tessera::train {

/// A network that steps may train, and by what.
struct TrainedNetwork {
  std::string name;                   ///< in logs and checkpoints: "student"
  std::optional<size_t> expert = {};  ///< whose parameters and states the engine's store has; none: they are elsewhere
  plan::StateFormat states = {};      ///< optimiser and formats
  recipe::LrSchedule rate = {};       ///< over the network's own turns
  double clip = 0;                    ///< of the norm of its gradients; 0: none
  int64_t accumulation = 1;           ///< batches that one turn of it takes
};

/// The networks that each step of a cycle trains, one after the other.
struct PhaseOrder {
  std::vector<std::vector<size_t>> cycle;
  bool repeats = false;  ///< a step of which an update was skipped is made again before the cycle goes on
};
/// Each of `networks` has a step, in turn.
PhaseOrder in_turn(size_t networks);
/// Network 1 has every step; before it, in the first of every `steps`, network 0.
PhaseOrder every(int64_t steps);

class Phases {
 public:
  /// Throws UserError (usage) for an order that names other networks, leaves one out, or has a step without any.
  Phases(std::vector<TrainedNetwork> networks, PhaseOrder order);

  size_t size() const { return networks_.size(); }
  const TrainedNetwork& network(size_t n) const { return networks_.at(n); }
  /// Those that the step trains, in this order.
  const std::vector<size_t>& now() const { return order_.cycle[place_]; }
  bool trains(size_t network) const;  ///< the step does
  /// The rate of a network in the turn that it has or has next. Steps of others don't count.
  double rate(size_t network) const;
  int64_t turns(size_t network) const { return counts_.at(network).turns; }
  int64_t updates(size_t network) const { return counts_.at(network).updates; }

  /// A turn of the step has ended; `updated`: its update was not skipped.
  void took(size_t network, bool updated);
  void end_step();

  /// "student 5 and discriminator 4 of 9 turns"
  std::string describe() const;
  void write(checkpoint::Manifest& manifest) const;
  /// Throws UserError (input) for a checkpoint without phases, or of other networks.
  void resume(const checkpoint::Manifest& manifest);

 private:
  struct Counts {
    int64_t turns = 0, updates = 0;
  };
  std::vector<TrainedNetwork> networks_;
  PhaseOrder order_;
  size_t place_ = 0;  // in the cycle
  bool skipped_ = false;
  std::vector<Counts> counts_;
};

}  // namespace tessera::train
