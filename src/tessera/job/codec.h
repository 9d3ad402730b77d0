#pragma once
// The autoencoder a recipe names: the built-in wavelet, or one made from a file of weights.
//
//   auto codec = open_codec("haar", 48, 0, 0);                         // channels of the denoiser's latents
//   auto codec = open_codec("Wan2.1-T2V-1.3B", 16, 256, 0);            // finds Wan2.1_VAE.pth; tiles of 256 pixels
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/data/video.h"
#include "tessera/models/vae/video_vae.h"
#include "tessera/net/model.h"
#include "tessera/plan/simulate/work.h"
#include "tessera/torch_headers.h"

namespace tessera::job {

/// `name` is data.vae: "haar", "haar:CHANNELS", a released autoencoder's (models::autoencoder_presets(), with random
/// weights), or a path: a file of weights (.safetensors, .pth), a folder with one and its config.json, or a model
/// folder (checkpoint/model_folder.h). `tile` pixels a side, 0: the picture is not cut; `tile_frames` likewise of clips, for autoencoders that tile in time. Throws UserError (usage) for
/// an unknown name or tiles that the autoencoder has no use for, (input) for files.
std::unique_ptr<net::VideoCodec> open_codec(const std::string& name, int64_t channels, int64_t tile,
                                            int64_t tile_frames);

/// Whether it codes all frames of a clip at once (models::VideoVae::tiles_in_time).
bool tiles_in_time(const net::VideoCodec& codec);

/// models::VideoVae::overlapping_piece; 0 without weights.
int64_t overlapping_piece(const net::VideoCodec& codec);

/// The latent of a clip. An autoencoder takes its pixels as the bytes they are, so nothing the size of the clip is
/// made.
at::Tensor encode_frames(const net::VideoCodec& codec, const data::Frames& frames);
/// codec.decode(latent), under a name that the message of a failing device has.
at::Tensor decode(const net::VideoCodec& codec, const at::Tensor& latent);

/// The weights of an autoencoder leave memory until something is encoded or decoded again.
void release(const net::VideoCodec& codec);

/// From a file or folder of weights; `config` may be empty: sizes are those of the weights.
std::unique_ptr<models::VideoVae> open_vae(const std::filesystem::path& weights, const std::filesystem::path& config,
                                           const models::Tiling& tiling);
/// The same of a config.json's text; `config_file` names it in messages.
std::unique_ptr<models::VideoVae> open_vae_as(const std::filesystem::path& weights, const std::string& config,
                                              const std::string& config_file, const models::Tiling& tiling);

// What an autoencoder takes for a clip: bytes, found by running its own code on meta tensors, and work.
//
//   codec_bytes(*job.codec, 81, 480, 832).decode;
//   codec_work(*job.codec, 81, 480, 832).products;      // FLOPs of each convolution of encode()

/// Bytes on one rank. An autoencoder without weights and for clips below a megabyte has small numbers, too.
struct CodecBytes {
  int64_t weights = 0;
  int64_t encode = 0;  ///< while the clip is encoded: chunk, features remembered, latent
  int64_t decode = 0;  ///< while it is decoded: chunk, features remembered, and its pixels
  int64_t clip = 0;    ///< pixels of the clip as bytes, in the host's memory and no tensor
};

/// For a clip of that size in pixels.
CodecBytes codec_bytes(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width);

/// Of encode() of such a clip.
plan::UnitWork codec_work(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width);

// Pixels as an autoencoder computes with them, and as bytes of a video.
//
//   data::write_mp4(file, to_frames(codec.decode(latent), fps));

/// [3, F, H, W] in [-1, 1], clamped, to bytes.
data::Frames to_frames(const at::Tensor& pixels, double fps);
/// And back.
at::Tensor to_pixels(const data::Frames& frames);

}  // namespace tessera::job
