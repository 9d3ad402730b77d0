#pragma once
// Runs one chunk of a clip through a list of layers; a cache carries the state from chunk to chunk.
//
//   FeatureCache cache;                                             // empty at the start of a clip
//   Tensor a = run_chunk(layers, weights, first_frame, cache);      // [C, 1, H, W]
//   Tensor b = run_chunk(layers, weights, next_four, cache);        // sees the end of the first
//
// [Note: chunks] The chunked pass defines these autoencoders and is not merely a way to save memory: the first chunk, a
// single frame, skips the convolutions that halve or double time. Those that double time never see the first chunk: in
// the second one, zeros precede their input.
#include <map>

#include "tessera/models/vae/pass_work.h"
#include "tessera/models/vae/video_vae.h"
#include "tessera/models/vae/wan_layers.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::wan_vae {

/// The causal convolutions' state between the chunks of one clip: their last input frames [1 or 2, h, w, C], by site.
/// Chunks overwrite it in place, so it can be moved and not copied.
struct FeatureCache {
  std::map<std::string, Tensor, std::less<>> frames;
  int64_t chunks = 0;  ///< run so far

  FeatureCache() = default;
  FeatureCache(FeatureCache&&) = default;
  FeatureCache& operator=(FeatureCache&&) = default;
  int64_t bytes() const;
};

/// x [C, T, H, W] fp32, with the C of the first layer -> [C of the last layer, ...]. `weights` by official name. On
/// meta tensors it allocates the bytes of the same chunk on a CPU, including those of oneDNN's convolutions.
Tensor run_chunk(const std::vector<Layer>& layers, const net::WeightMap& weights, Tensor x, FeatureCache& cache);

/// Bytes of tensors of a chunk after the first, without weights and input.
struct ChunkBytes {
  int64_t cache = 0;  ///< of the FeatureCache, which stays
  int64_t work = 0;   ///< peak while it runs, with its result
  int64_t total() const { return cache + work; }
};

/// Measured by running chunks on meta tensors. `chunk`: a chunk after the first, as a meta tensor of its dtype (pixels
/// may be bytes); `prepare` converts it to the input of the layers.
ChunkBytes chunk_bytes(const std::vector<Layer>& layers, const net::WeightMap& meta_weights, const Tensor& chunk,
                       const std::function<Tensor(const Tensor&)>& prepare, const CountBytes& count);

/// What the encoder's pass over the chunks of a clip of so many pixels does.
void add_work(const std::vector<Layer>& encoder, int64_t time_stride, int64_t frames, int64_t height, int64_t width,
              PassWork& work);

}  // namespace tessera::models::wan_vae
