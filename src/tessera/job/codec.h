#pragma once
// The autoencoder a recipe names: the built-in wavelet, or one made from a file of weights.
//
//   auto codec = open_codec("haar", 48, 0, 0);                         // channels of the denoiser's latents
//   auto codec = open_codec("Wan2.1-T2V-1.3B", 16, 256, 0);            // finds Wan2.1_VAE.pth; tiles of 256 pixels
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/data/video.h"
#include "tessera/models/vae/video_vae.h"

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

}  // namespace tessera::job
