#pragma once
// Sizes and scaling of Open-Sora 1.2's autoencoder, "VideoAutoencoderPipeline" in its config.json: the autoencoder of
// pictures of Stable Diffusion XL, and one of time over its latents.
//
//   opensora12_vae::Config config = opensora12_vae::config_of_weights(shape, "model.safetensors");
//   opensora12_vae::check_config(text, "vae/config.json", config);          // and takes its groups and piece
//
// Sizes and scaling of Open-Sora 1.3's autoencoder, "OpenSoraVAE_V1_3_Pipline" in its config.json.
//
//   opensora13_vae::Config config = opensora13_vae::config_of_weights(shape, "model.safetensors");
//   opensora13_vae::check_config(text, "vae/config.json", config);          // and takes its piece and scaling
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/common/weight_form.h"
#include "tessera/models/vae/file_sizes.h"

namespace tessera::models::opensora12_vae {

inline constexpr int64_t kStride = 8;  ///< pixels of a latent cell along a side

/// Defaults are those of the release.
struct Config {
  /// Of pictures: channels from full resolution down. Every level but the last halves height and width.
  std::vector<int64_t> widths = {128, 256, 512, 512};
  int64_t layers = 2;  ///< residual blocks in a level of the encoder; the decoder has one more
  int64_t latent_channels = 4;
  int64_t groups = 32;      ///< of channels that are normalised together
  double factor = 0.18215;  ///< latents of pictures times it are what is coded over time
  /// Of time: channels of each level, and after which of them, the last left out, the frames are halved.
  std::vector<int64_t> time_widths = {128, 256, 256, 512};
  int64_t time_first = 128;  ///< that the first convolution makes
  std::vector<bool> halved = {false, true, true};
  int64_t time_layers = 4;
  int64_t time_groups = 32;
  int64_t piece = 17;  ///< frames that are coded together ("micro_frame_size")
  /// A denoiser's latents are (latent - mean) / std.
  std::vector<double> mean = {-0.10, 0.34, 0.27, 0.98}, std = {3.85, 2.32, 2.33, 3.06};

  int64_t time_stride() const;  ///< frames of a latent frame
  int64_t latent_piece() const { return (piece + time_stride() - 1) / time_stride(); }
};

/// Widths, layers and channels; groups, scaling and piece are those of the release. Throws UserError (input) for another
/// architecture.
Config config_of_weights(const ShapeOf& shape, const std::string& file);

/// Compares the fields of a config.json with the sizes of the weights and takes its groups, scaling and piece. Throws
/// UserError (input).
void check_config(std::string_view json, const std::string& file, Config& config);

/// Throws UserError (input) where the widths do not divide into the groups.
void check_groups(const Config& config, const std::string& file);

/// The fields of its config.json.
nlohmann::ordered_json config_json(const Config& config);

WeightForm weight_form();

}  // namespace tessera::models::opensora12_vae

namespace tessera::models::opensora13_vae {

inline constexpr int64_t kStride = 8;      ///< pixels of a latent cell along a side
inline constexpr int64_t kTimeStride = 4;  ///< frames of a latent frame after the first of a piece

/// What is subtracted from a channel of a latent, and what it is divided by.
enum class Normalization {
  none,
  video,         ///< of the channel
  video_5frames  ///< of the channel and of the latent frame's place among five: the pieces of the release
};

/// Defaults are those of the release.
struct Config {
  /// Channels from full resolution down. Every level but the last halves height and width; the second and third halve
  /// time as well.
  int64_t first = 128;                                 ///< channels that the encoder makes of colours
  std::vector<int64_t> widths = {128, 256, 512, 512};  ///< of the encoder
  std::vector<int64_t> decoder_widths = {128, 256, 512, 512};
  int64_t layers = 2;          ///< residual blocks in a level of the encoder
  int64_t decoder_layers = 2;  ///< as the config counts them: the decoder has one more in a level
  int64_t latent_channels = 16;
  int64_t groups = 32;  ///< of channels that are normalised together
  int64_t piece = 17;   ///< frames that are coded together ("micro_frame_size"); 0: all
  bool overlap = true;  ///< a piece begins with the last frame of the one before ("temporal_overlap")
  Normalization normalization = Normalization::video;

  int64_t latent_piece() const { return (piece - 1) / kTimeStride + 1; }
};

/// Widths, layers and channels; the rest is that of the release. Throws UserError (input) for another architecture.
Config config_of_weights(const ShapeOf& shape, const std::string& file);

/// Compares the fields of a config.json with the sizes of the weights and takes its groups, piece and normalization. The
/// released file has none of these: the trainer's settings do. Throws UserError (input).
void check_config(std::string_view json, const std::string& file, Config& config);

/// Throws UserError (input) where the widths do not divide into the groups, or there are no statistics for so many
/// channels.
void check_sizes(const Config& config, const std::string& file);

/// The fields of its config.json.
nlohmann::ordered_json config_json(const Config& config);

inline constexpr int64_t kFrames = 5;  ///< of a piece

inline constexpr std::array<float, 16> kMean = {-0.1901695F,   -0.044800628F, 0.020789705F,   0.018653357F,
                                                -0.011585569F, 0.0010865575F, 0.08378933F,    0.08902134F,
                                                0.009409455F,  0.08086848F,   -0.07251628F,   0.05052144F,
                                                -0.020972481F, -0.12230792F,  -0.0038623565F, -0.023072388F};
inline constexpr std::array<float, 16> kStd = {
    0.9490776F,  0.9594118F, 0.9444303F, 0.91032845F, 0.95935166F, 0.84303516F, 0.8888125F, 0.9291137F,
    0.97259414F, 0.8917954F, 0.8630854F, 0.82798916F, 0.91143F,    0.7922845F,  0.8991407F, 0.9473514F};
/// [channel, frame]
inline constexpr std::array<float, 80> kMeanOfFrames = {
    -0.31038138F,   -0.17488302F,   -0.1390065F,    -0.11228419F,  -0.2143084F,   0.089755274F,  -0.055954233F,
    -0.07017383F,   -0.12842283F,   -0.059222423F,  0.009729884F,  0.022306992F,  0.023845116F,  0.023336032F,
    0.024730036F,   0.10618276F,    -0.10902954F,   0.060719784F,  0.10005339F,   -0.06466035F,  0.029384656F,
    0.052769065F,   -0.0128054805F, -0.03036861F,   -0.09690209F,  0.01716991F,   -0.007233284F, 0.0011372794F,
    -0.0029931865F, -0.0026791762F, 0.11501131F,    0.087407455F,  0.0757848F,    0.07428467F,   0.066402785F,
    0.043605775F,   0.12531929F,    0.05740308F,    0.09716418F,   0.12161173F,   -0.003800593F, 0.066950716F,
    0.0037457007F,  0.00064624334F, -0.020493738F,  0.09442657F,   0.047472052F,  0.043563962F,  0.05506575F,
    0.16380565F,    -0.17690079F,   -0.13735504F,   -0.02259145F,  0.033208176F,  -0.058970865F, 0.049464937F,
    0.06297766F,    0.0469673F,     0.042452283F,   0.05074439F,   -0.052013952F, -0.038366813F, -0.0018303691F,
    -0.0057245153F, -0.0069338484F, -0.068219386F,  -0.13791534F,  -0.14595246F,  -0.11955552F,  -0.13990912F,
    -0.009703802F,  -0.014363708F,  -0.0051330593F, 0.0068099457F, 0.003080054F,  -0.14393239F,  -0.00912384F,
    -0.01863871F,   -0.005709422F,  0.06205809F};
/// [channel, frame]
inline constexpr std::array<float, 80> kStdOfFrames = {
    0.9969105F,  0.9459409F,  0.9167423F,  0.92885023F, 0.89932984F, 1.0192935F,  0.9416692F,  0.9346943F, 0.9353694F,
    0.9003037F,  0.9833934F,  0.9082298F,  0.9308427F,  0.9624826F,  0.9349732F,  0.97186136F, 0.91052F,   0.8878196F,
    0.86988616F, 0.86309445F, 1.0202057F,  0.94473195F, 0.9330361F,  0.9632452F,  0.92104787F, 1.0385587F, 0.8876768F,
    0.7368917F,  0.7580699F,  0.75087255F, 1.0592127F,  0.8657043F,  0.82151794F, 0.8476718F,  0.8209494F, 0.9920972F,
    0.927169F,   0.89886844F, 0.9289982F,  0.8869122F,  1.0359006F,  0.95993954F, 0.9465613F,  0.9801757F, 0.93422F,
    0.962186F,   0.8828722F,  0.87103915F, 0.8808464F,  0.8516325F,  0.9560437F,  0.84533536F, 0.8308913F, 0.825839F,
    0.8010841F,  0.98799556F, 0.811466F,   0.75618976F, 0.788991F,   0.7724365F,  0.9584462F,  0.8858027F, 0.89920944F,
    0.9229688F,  0.884798F,   0.9060379F,  0.78632456F, 0.73743653F, 0.7614733F,  0.74287385F, 0.9648598F, 0.8712865F,
    0.8902931F,  0.8947093F,  0.87098163F, 1.0170196F,  0.9330488F,  0.9144401F,  0.9294653F,  0.88715833F};

WeightForm weight_form();

}  // namespace tessera::models::opensora13_vae
