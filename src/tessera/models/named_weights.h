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
#include "tessera/models/registry.h"
#include "tessera/net/unit.h"

namespace tessera::models {

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

// Tensors that a file holds beside a model's parameters: those of other parts in an all-in-one file, which are known,
// and those of another model, which training and converting refuse unless told otherwise.
//
//   const ExtraTensors extra = extra_tensors(stored, identity, is_parameter);
//   if (!extra.unknown.empty()) refuse_extra("weights.load", path, extra, identity, hint);

struct ExtraTensors {
  std::vector<std::string> unknown;      ///< no parameters, and of no part that is known
  std::vector<std::string> other_parts;  ///< of the autoencoder or the text encoder in the same file
};

/// Scales of fp8 weights and what only official files hold are neither. Names as stored, in the order given.
ExtraTensors extra_tensors(const std::vector<std::string>& stored, const models::Identity& identity,
                           const std::function<bool(const std::string& stored)>& is_parameter);

/// Throws UserError (input) naming the first unknown tensor and the model that it looks like.
[[noreturn]] void refuse_extra(const std::string& where, const std::string& path, const ExtraTensors& extra,
                               const models::Identity& identity, const std::string& hint);

}  // namespace tessera::models
