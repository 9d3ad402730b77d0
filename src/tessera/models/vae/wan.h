#pragma once
// The autoencoders of Wan, causal in time: of Wan 2.1 (8x8 pixels and 4 frames to a latent cell of 16 channels; also
// used by Wan 2.2's A14B and S2V) and of Wan 2.2 (TI2V-5B: 16x16 pixels and 4 frames to 48 channels).
//
//   WanVae vae(config, read, {.size = 256, .overlap = 64});
//   Tensor latent = vae.encode(pixels);                    // [3, 81, 480, 832] in [-1, 1] -> [16, 21, 60, 104]
//   Tensor video = vae.decode(latent);                     // and back, not clamped
//
//   FeatureCache cache;                                    // or chunk by chunk
//   Tensor first = vae.encode_chunk(pixels.narrow(1, 0, 1), cache);
//   Tensor next = vae.encode_chunk(pixels.narrow(1, 1, 4), cache);      // sees the end of the first
//
// [Note: chunks] The chunked pass defines these autoencoders and is not merely a way to save memory: the first chunk, a
// single frame, skips the convolutions that halve or double time. Those that double time never see the first chunk: in
// the second one, zeros precede their input.
#include "tessera/models/vae/video_vae.h"
#include "tessera/models/vae/wan_config.h"

namespace tessera::models::wan_vae {

std::vector<Parameter> parameters(const Config& config);  ///< by official names

/// Bytes of tensors of a chunk after the first, without weights and input.
struct ChunkBytes {
  int64_t cache = 0;  ///< of the FeatureCache, which stays
  int64_t work = 0;   ///< peak while it runs, with its result
  int64_t total() const { return cache + work; }
};

class WanVae final : public VideoVae {
 public:
  /// With a tiling, height and width are cut into tiles that are encoded and decoded one after the other. Throws
  /// UserError (usage) for tiles that are not multiples of the stride.
  WanVae(Config config, ReadWeight read, const Tiling& tiling);

  /// Frames must be 1 + 4n, height and width multiples of 8 (2.2: 16); throws UserError (usage) naming the nearest.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;

  /// Encodes the first frame, then four at a time: [3, 1 or 4, H, W] -> mean and log variance, [2C, 1, h, w], unscaled.
  Tensor encode_chunk(const Tensor& pixels, FeatureCache& cache) const;
  /// Decodes one latent frame, unscaled: [C, 1, h, w] -> [3, 1, H, W] for the first, [3, 4, H, W] for later ones.
  Tensor decode_chunk(const Tensor& latent, FeatureCache& cache) const;
  /// Bytes of one chunk of frames of this size, untiled.
  ChunkBytes encode_chunk_bytes(int64_t height, int64_t width, const CountBytes& count) const;
  ChunkBytes decode_chunk_bytes(int64_t height, int64_t width, const CountBytes& count) const;

  const Config& config() const { return config_; }

 private:
  Tensor moments(const Tensor& pixels, LayerRunner& run) const override;
  Tensor pixels(const Tensor& unscaled, LayerRunner& run) const override;
  /// Pixels of the chunk of latent frame `i`.
  Part chunk_of(int64_t i) const;
  Tensor encode_tile(const Tensor& pixels, LayerRunner& run) const;
  Tensor decode_tile(const Tensor& latent, LayerRunner& run) const;
  ChunkBytes chunk_bytes(const std::vector<Layer>& layers, const Tensor& chunk, const CountBytes& count) const;

  const Config config_;
  const std::vector<Layer> encoder_, decoder_;
};

AutoencoderMake autoencoder();  ///< its row of the registry

}  // namespace tessera::models::wan_vae
