#pragma once
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

}  // namespace tessera::data
