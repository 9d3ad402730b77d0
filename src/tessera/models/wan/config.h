#pragma once
// Sizes of a Wan denoiser: the fields of the official config.json, its diffusers form, and the presets.
//
//   Config config = preset("wan2.1-t2v-1.3b");
//   Config other = parse_config(text, "my-model/config.json");
//
// Sizes of Wan 2.2's speech-to-video denoiser: those of the common Wan transformer, and of its audio conditioning.
//
//   S2vConfig config = parse_s2v_config(text, "Wan2.2-S2V-14B/config.json");
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/common/identity.h"

namespace tessera::models {
class ConfigReader;
}

namespace tessera::models::wan {

/// model_type of config.json.
enum class Type { t2v, i2v, flf2v, ti2v };
std::string_view name(Type type);

inline constexpr int64_t kClipDim = 1280;    ///< of the pictures' encoder; a constant of the official code
inline constexpr int64_t kMaskChannels = 4;  ///< of y: one for each frame that a latent frame stands for
inline constexpr int64_t kCameraChannels =
    24;  ///< of a camera: six numbers of each of the four frames of a latent frame

struct Config {
  Type type = Type::t2v;
  int64_t dim = 1536;
  int64_t ffn_dim = 8960;
  int64_t num_heads = 12;
  int64_t num_layers = 30;
  int64_t in_dim = 16;
  int64_t out_dim = 16;
  int64_t text_dim = 4096;
  int64_t text_len = 512;
  int64_t freq_dim = 256;
  std::array<int64_t, 3> patch = {1, 2, 2};  ///< frames, height, width
  double eps = 1e-6;
  int64_t image_dim = 0;     ///< width of CLIP features; 0: no image branch (text-to-video, and all of Wan 2.2)
  int64_t image_len = 257;   ///< rows of CLIP features of one image
  int64_t ref_dim = 0;       ///< Fun: channels of a reference picture's latent, whose tokens come first; 0: none
  int64_t camera_dim = 0;    ///< Fun: channels of the camera's rays, at the size of the pixels; 0: none
  int64_t camera_scale = 8;  ///< pixels of a cell of the latent, which the adapter folds

  int64_t head_dim() const { return dim / num_heads; }
  int64_t patch_size() const { return patch[0] * patch[1] * patch[2]; }
  bool takes_images() const { return in_dim > out_dim; }
  bool has_image_branch() const { return image_dim > 0; }
  int64_t image_rows() const { return has_image_branch() ? image_len * (type == Type::flf2v ? 2 : 1) : 0; }
  int64_t y_dim() const { return in_dim - out_dim; }  ///< channels beside the noisy latent: mask, then latent
  /// Of y, in this order: the latent of a control video, a mask, the latent of what is given. 0: not there.
  int64_t control_channels() const {
    return y_dim() != kMaskChannels + out_dim && y_dim() >= 2 * out_dim ? out_dim : 0;
  }
  int64_t mask_channels() const { return takes_images() ? y_dim() - control_channels() - out_dim : 0; }
  bool has_extras() const { return ref_dim > 0 || camera_dim > 0; }
  bool operator==(const Config&) const = default;
};

/// Reads either form. An official config.json lacks the image branch, which Wan 2.1's image-to-video models have and
/// those of Wan 2.2 do not: `weights` (shapes by official name) decide it. Without weights, a released file (with
/// _class_name) is Wan 2.1's unless it is in a folder high_noise_model or low_noise_model. Throws UserError (input)
/// naming file and field.
Config parse_config(std::string_view json, const std::string& file, const Shapes& weights = {});
/// The official form; fields that it leaves to defaults are written when they differ from them.
std::string to_json(const Config& config);

/// A field that lists numbers of blocks, ascending, 0 among them. Throws UserError as above.
std::vector<int64_t> block_numbers(const ConfigReader& json, const char* key, int64_t num_layers);

const std::vector<std::pair<std::string, Config>>& presets();
/// A preset of theirs with that many blocks instead; 0: with its own.
Config preset_with(std::string_view name, int64_t num_layers = 0);

// Models that are one of these with more beside it, whose config.json has the fields of both.

/// Whether a config.json says that it is of this model_type or of one of these classes, or has the field.
bool says(std::string_view json, const char* type, std::initializer_list<const char*> classes,
          const char* field = nullptr);
/// The transformer's part, which `type` reads; fields that are absent are those of `usual`.
Config parse_base(std::string_view json, const std::string& file, const char* type,
                  const nlohmann::ordered_json& usual = nlohmann::ordered_json::object());
/// The transformer's fields, to which the model adds its own.
nlohmann::ordered_json base_json(const Config& base, const char* type, const char* class_name);

/// Sigma from which on the high-noise expert of Wan 2.2's A14B releases denoises: one value for models with a first
/// image, one for the others.
double released_boundary(Type type);

struct S2vConfig {
  Config base;                        ///< the transformer; its type is not read
  int64_t cond_dim = 16;              ///< channels of the pose latent
  int64_t audio_dim = 1024;           ///< width of the audio encoder's hidden states
  int64_t num_audio_token = 4;        ///< audio tokens of a latent frame, without the learned one
  std::vector<int64_t> inject_after;  ///< blocks that are followed by cross-attention to the audio, ascending

  int64_t audio_tokens() const { return num_audio_token + 1; }  ///< of a latent frame
  bool operator==(const S2vConfig&) const = default;
};

inline constexpr int64_t kAudioLayers = 25;   ///< hidden states in the weighted mean; a constant of the reference
inline constexpr int64_t kAudioPerFrame = 4;  ///< audio rows of a latent frame

/// Whether a config.json is of this model, by its model_type or class.
bool is_s2v_config(std::string_view json);
/// Throws UserError (input) naming file and field; variants that were never released (motioner, tsm, a pose by
/// cross-attention, ...) are refused.
S2vConfig parse_s2v_config(std::string_view json, const std::string& file);
std::string to_json(const S2vConfig& config);

const std::vector<std::pair<std::string, S2vConfig>>& s2v_presets();

}  // namespace tessera::models::wan
