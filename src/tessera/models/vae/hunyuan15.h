#pragma once
// HunyuanVideo-1.5's autoencoder, causal in time: 16x16 pixels and 4 frames to a latent cell of 32 channels.
//
//   Hunyuan15Vae vae(config, read, {.size = 256, .overlap = 32});
//   Tensor latent = vae.encode(pixels);                    // [3, 121, 480, 848] in [-1, 1] -> [32, 31, 30, 53]
//   Tensor video = vae.decode(latent);                     // and back, not clamped
//
// "AutoencoderKLConv3D" in Tencent's code, "AutoencoderKLHunyuanVideo15" in diffusers. Halving and doubling move pixels and
// frames into channels and back; beside each goes a shortcut of means or repetitions of neighbouring channels. The first
// frame of a clip has no partner, so that it changes its sides alone. All frames of a clip, or of a tile, are coded at
// once: tiles in time are not what the models were trained on.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/vae/file_sizes.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::hunyuan15_vae {

/// Defaults are those of the release (1,260,634,115 parameters).
struct Config {
  std::vector<int64_t> widths = {128, 256, 512, 1024, 1024};  ///< channels from full resolution down
  int64_t layers = 2;  ///< residual blocks in a level of the encoder; the decoder has one more
  int64_t latent_channels = 32;
  int64_t stride = 16, time_stride = 4;  ///< pixels of a latent cell along a side; frames of a latent frame
  /// A denoiser's latents are (latent - shift_factor) * scaling_factor.
  double scaling_factor = 1.03682, shift_factor = 0;

  int64_t halvings() const;       ///< of sides
  int64_t time_halvings() const;  ///< the last of them, in the encoder; the first doublings in the decoder
};

/// Sizes; the scaling is that of the release. Throws UserError (input) for another architecture.
Config config_of_weights(const ShapeOf& shape, const std::string& file);
/// Compares the fields of a config.json, official or diffusers', with the sizes of the weights and takes its scaling.
/// Throws UserError (input).
void check_config(std::string_view json, const std::string& file, Config& config);
WeightForm weight_form();
/// Official names, which are ours, to diffusers'.
const KeyMap& diffusers_names();

std::vector<Layer> encoder_layers(const Config& config);
std::vector<Layer> decoder_layers(const Config& config);
std::vector<Parameter> parameters(const Config& config);

class Hunyuan15Vae final : public VideoVae {
 public:
  /// Throws UserError (usage) for tiles that are not multiples of a cell.
  Hunyuan15Vae(Config config, ReadWeight read, const Tiling& tiling);

  /// Frames must be 1 + 4n, height and width multiples of 16; throws UserError (usage) naming the nearest.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;

  const Config& config() const { return config_; }

 private:
  Tensor moments(const Tensor& pixels, LayerRunner& run) const override;
  Tensor pixels(const Tensor& unscaled, LayerRunner& run) const override;

  const Config config_;
  const std::vector<Layer> encoder_, decoder_;
};

AutoencoderMake autoencoder();  ///< its row of the registry

}  // namespace tessera::models::hunyuan15_vae
