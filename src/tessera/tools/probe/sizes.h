#pragma once
// What is timed: sizes of the models that a kind of machine trains, and of buffers that none of its caches holds.
//
//   const Sizes& sizes = sizes_of(device::used());
#include <array>
#include <vector>

#include "tessera/device/backend.h"
#include "tessera/torch_headers.h"

namespace tessera::tools {

/// x [rows, in] times a weight [out, in].
struct ProductSize {
  int64_t rows, in, out;
};

struct Sizes {
  /// Points of products and of attention in one dtype.
  struct OfType {
    at::ScalarType type;
    std::vector<double> rows, widths;  ///< products: rows, and both sides of the weight
    std::vector<double> spans;         ///< attention: queries, and keys
  };
  std::vector<OfType> types;  ///< first the one that trains
  /// Bytes of weights that products take turns with, and of gradients as well; `cached` of a small model, which a cache holds
  /// from step to step. 0: what the products read and write beside their weights leaves no cache to them.
  size_t cached, uncached;
  int64_t head, heads;                  ///< of attention
  std::array<ProductSize, 2> products;  ///< few and many: the line through both is a rate, and so below
  std::array<int64_t, 2> spans;         ///< of attention
  std::array<int64_t, 2> rows;          ///< of operators between products
  int64_t width;                        ///< of these
  int64_t flat;                         ///< elements of a buffer that is gone through in parts
  std::array<int64_t, 2> part;          ///< elements of a part
  ProductSize beside;                   ///< beside which copies and messages are timed
  int64_t copy, copy_beside;            ///< bytes between device and host; of a CPU within its memory
  std::array<int64_t, 2> shard;         ///< fp32 elements of a rank in a collective
  int64_t ahead;                        ///< bytes of clock_of()
  /// A model that trains for a few steps: what the engine adds.
  struct Engine {
    int64_t head, heads;               ///< of its attention
    std::array<int64_t, 4> few, many;  ///< latents
    int64_t samples;                   ///< of a micro-batch with many tokens
  } engine;
};

/// For a GPU, or with null for the processors of this machine. `small`: sizes that any of them does at once, and whose times say
/// nothing of training: a dry run.
const Sizes& sizes_of(const device::Backend* device, bool small);

/// Normally distributed values on the device that the process computes on: products of zeros are faster. A million of them, again
/// and again.
at::Tensor normal(at::IntArrayRef shape, at::ScalarType type = at::kFloat);

}  // namespace tessera::tools
