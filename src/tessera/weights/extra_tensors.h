#pragma once
// Tensors that a file holds beside a model's parameters: those of other parts in an all-in-one file, which are known,
// and those of another model, which training and converting refuse unless told otherwise.
//
//   const ExtraTensors extra = extra_tensors(stored, identity, is_parameter);
//   if (!extra.unknown.empty()) refuse_extra("weights.load", path, extra, identity, hint);
#include <functional>
#include <string>
#include <vector>

#include "tessera/models/identify.h"

namespace tessera::weights {

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

}  // namespace tessera::weights
