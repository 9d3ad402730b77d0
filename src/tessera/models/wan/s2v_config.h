#pragma once
// Sizes of Wan 2.2's speech-to-video denoiser: those of the common Wan transformer, and of its audio conditioning.
//
//   S2vConfig config = parse_s2v_config(text, "Wan2.2-S2V-14B/config.json");
#include "tessera/models/wan/config.h"

namespace tessera::models::wan {

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
