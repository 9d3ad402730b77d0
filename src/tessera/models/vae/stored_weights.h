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

/// What stands for a released tensor where there is no file: factors of norms (one dimension that is not 1) are 1,
/// biases 0, others normal with a deviation of the inputs' number to the power of -1/2. The same in every process.
Tensor random_tensor(const std::string& name, const std::vector<int64_t>& shape);

}  // namespace tessera::models
