#pragma once
// The autoencoder a recipe names: the built-in wavelet, or one made from a file of weights.
//
//   auto codec = open_codec("haar", 48, 0);                            // channels of the denoiser's latents
//   auto codec = open_codec("Wan2.1-T2V-1.3B", 16, 256);               // finds Wan2.1_VAE.pth; tiles of 256 pixels
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/models/vae/video_vae.h"

namespace tessera::train {

/// `name` is data.vae: "haar", "haar:CHANNELS", or a path: a file of weights (.safetensors, .pth), a folder with one
/// and its config.json, or a model folder, official (Wan2.1_VAE.*) or of diffusers (vae/). `tile` pixels a side, 0: the
/// picture is not cut. Throws UserError (usage) for an unknown name, (input) for files.
std::unique_ptr<net::VideoCodec> open_codec(const std::string& name, int64_t channels, int64_t tile);

/// Bytes that encoding or decoding a clip takes at once, whichever is more; 0 for the wavelet, whose few tensors hide
/// below a step's.
int64_t codec_bytes(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width);

/// From a file or folder of weights; `config` may be empty: sizes are those of the weights.
std::unique_ptr<models::VideoVae> open_vae(const std::filesystem::path& weights, const std::filesystem::path& config,
                                           const models::Tiling& tiling);

}  // namespace tessera::train
