#pragma once
// One tensor that another program encoded, in a file by itself: .npy of numpy.save, .pt or .pth of torch.save(tensor, PATH).
//
//   const NpyShape shape = tensor_shape("latents/0001.pt");             // {16, 9, 32, 32}; no values are read
//   const NpyArray latent = read_tensor_file("latents/0001.pt");        // its values as fp32
//
// Arrays of numpy's .npy files, on disk or in an archive: latents that another program encoded.
//
//   const NpyShape shape = npy_shape("shards/00000.tar/cat.npy");       // {32, 32, 32}; the header alone
//   const NpyArray array = read_npy("shards/00000.tar/cat.npy");        // its values as fp32
#include <cstdint>
#include <vector>

#include "tessera/data/files/archive.h"

namespace tessera::data {

using NpyShape = std::vector<int64_t>;

struct NpyArray {
  NpyShape shape;
  std::vector<float> values;  ///< row-major
};

/// Throw UserError (input) naming the file: no .npy, cut short, numbers other than float16, float32 and float64,
/// columns first, pickled objects (nothing in a file is ever executed).
NpyShape npy_shape(const Path& path);
NpyArray read_npy(const Path& path);

/// An array without its batch of one, as frames of latents [C, f, h, w]; empty where it is none.
NpyShape latent_shape(const NpyShape& array);

/// Throw UserError (input) naming the file: more than one tensor, a dict, numbers of another kind than fp64, fp32, fp16
/// and bf16, none at all, one that is not finite. A pickle is parsed, never executed.
NpyShape tensor_shape(const Path& path);
NpyArray read_tensor_file(const Path& path);

}  // namespace tessera::data
