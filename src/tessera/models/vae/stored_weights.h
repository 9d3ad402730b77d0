#pragma once
// Tensors of an autoencoder's file, looked up with errors that name file, tensor and shapes.
//
//   expect_tensor(weights, "conv1.weight", {32, 16, 1, 1, 1}, "is this the whole file?");
#include "tessera/models/vae/video_vae.h"

namespace tessera::models {

bool has_tensor(const WeightSource& weights, const std::string& name);

/// Throws UserError (input) where it is missing, or with `hint` where it has another shape.
void expect_tensor(const WeightSource& weights, const std::string& name, const std::vector<int64_t>& shape,
                   const std::string& hint);

}  // namespace tessera::models
