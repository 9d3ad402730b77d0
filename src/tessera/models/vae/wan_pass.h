#pragma once
// One chunk of a clip through a list of layers, with what earlier chunks left behind handed in and out.
//
//   FeatureCache cache;                                             // empty at the start of a clip
//   Tensor a = run_chunk(layers, weights, first_frame, cache);      // [C, 1, H, W]
//   Tensor b = run_chunk(layers, weights, next_four, cache);        // sees the end of the first
//
// [Note: chunks] The chunked pass is the definition of these autoencoders, not a trick to save memory: the first chunk,
// a single frame, skips the convolutions that halve or double time. Those that double time do not even see it later on:
// in the second chunk zeros stand before their input.
#include <map>

#include "tessera/models/vae/wan_layers.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::wan_vae {

/// What the causal convolutions remember between the chunks of one clip: their last input frames [1 or 2, h, w, C], by
/// site. Chunks overwrite it in place, so it moves and does not copy.
struct FeatureCache {
  std::map<std::string, Tensor, std::less<>> frames;
  int64_t chunks = 0;  ///< seen so far

  FeatureCache() = default;
  FeatureCache(FeatureCache&&) = default;
  FeatureCache& operator=(FeatureCache&&) = default;
  int64_t bytes() const;
};

/// x [C, T, H, W] fp32, C that of the first layer -> [C of the last layer, ...]. `weights` by official name. On meta
/// tensors it allocates what the same chunk takes on a CPU, what oneDNN's convolutions keep for themselves included.
Tensor run_chunk(const std::vector<Layer>& layers, const net::WeightMap& weights, Tensor x, FeatureCache& cache);

/// Bytes of tensors that a chunk after the first takes beside weights and input.
struct ChunkBytes {
  int64_t cache = 0;  ///< FeatureCache, which stays
  int64_t work = 0;   ///< most at once while it runs, its result included
  int64_t total() const { return cache + work; }
};

/// Found by running chunks on meta tensors. `chunk`: one after the first, without memory (its dtype counts: pixels come
/// as bytes); `prepare` is what is done to it before its layers.
ChunkBytes chunk_bytes(const std::vector<Layer>& layers, const net::WeightMap& meta_weights, const Tensor& chunk,
                       const std::function<Tensor(const Tensor&)>& prepare, const CountBytes& count);

}  // namespace tessera::models::wan_vae
