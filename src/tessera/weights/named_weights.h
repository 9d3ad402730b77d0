#pragma once
// The weights of a list of units in a file or folder, whatever they are called there. Shapes are compared without
// reading a value, so what does not fit is told before hours of encoding and not after.
//
//   NamedWeights weights(recipe.model.path, official_names(units), foreign, models::kDenoiserNamings);
//   weights.check(units, hint);
//   engine::load_weights(store, weights.set(), weights.names(), hint);
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/weights.h"
#include "tessera/models/common/names.h"
#include "tessera/net/unit.h"

namespace tessera::weights {

using Units = std::vector<std::unique_ptr<net::Unit>>;

class NamedWeights {
 public:
  /// Throws UserError (input) when the files are not there or their names are of no known naming.
  NamedWeights(const std::string& path, const Units& units, models::ForeignName foreign,
               const std::vector<std::string>& namings);

  const checkpoint::WeightSet& set() const { return set_; }
  /// From an official name to the one in the file, empty for adapters, which are not in it; valid while this object
  /// lives.
  std::function<std::string(const std::string&)> names() const;
  /// Throws UserError (input) for a missing tensor or another shape; `hint` says what to try.
  void check(const Units& units,
             const std::function<std::string(const std::string&, const std::vector<int64_t>&)>& hint) const;

  /// Throws UserError (input) for a tensor that is no parameter of the model, saying what the file looks like. Scales of
  /// fp8 weights are known, and so is what lies beside the model in one file: autoencoder and text encoder.
  void check_unknown(const Units& units, const std::string& hint) const;

 private:
  const checkpoint::WeightSet set_;
  const models::ForeignName foreign_;
  models::Naming naming_;
};

}  // namespace tessera::weights
