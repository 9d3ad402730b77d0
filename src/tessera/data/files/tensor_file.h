#pragma once
// One tensor that another program encoded, in a file by itself: .npy of numpy.save, .pt or .pth of torch.save(tensor, PATH).
//
//   const NpyShape shape = tensor_shape("latents/0001.pt");             // {16, 9, 32, 32}; no values are read
//   const NpyArray latent = read_tensor_file("latents/0001.pt");        // its values as fp32
#include "tessera/data/files/npy.h"

namespace tessera::data {

/// Throw UserError (input) naming the file: more than one tensor, a dict, numbers of another kind than fp64, fp32, fp16
/// and bf16, none at all, one that is not finite. A pickle is parsed, never executed.
NpyShape tensor_shape(const Path& path);
NpyArray read_tensor_file(const Path& path);

}  // namespace tessera::data
