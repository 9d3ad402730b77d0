#pragma once
// Which parameters a recipe trains, and which have a rate or a decay of their own: train.only, train.freeze and the tables
// [[train.group]], whose patterns the model is asked for (models/common/trained_parts.h).
//
//   const ParameterKeys keys = parameter_keys(recipe);
//   keys.groups[0].match; keys.groups[0].factor;      // "norm_q", 0.5
#include <optional>

#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

struct ParameterGroup {
  std::string match;                   ///< a pattern
  double factor = 1;                   ///< of the schedule's rate; 0: its parameters are frozen
  std::optional<double> weight_decay;  ///< in place of train.weight_decay
};

struct ParameterKeys {
  std::vector<std::string> only, freeze;  ///< patterns; empty: all parameters, none
  std::vector<ParameterGroup> groups;     ///< the first that matches holds
  /// Of tensors of two dimensions or more, those that are updated as matrices, empty: those of the blocks; and those that
  /// AdamW updates all the same. Of optimisers that update matrices (plan::OptimizerRow::whole).
  std::vector<std::string> matrices, elementwise;
  bool choose() const { return !only.empty() || !freeze.empty(); }
};

/// Whether the optimiser is AdamW without a schedule (optim/schedule_free.h), which has AdamW's states and an average of its
/// own: that is what is sampled, measured and exported.
bool is_schedule_free(const Recipe& recipe);

/// Throws UserError (usage) for groups that say nothing, or that the optimiser cannot have.
ParameterKeys parameter_keys(const Recipe& recipe);

}  // namespace tessera::recipe
